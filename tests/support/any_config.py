"""Hypothesis strategies for plain data and for the sections of a config."""

from dataclasses import fields

from hypothesis import strategies as st

from minitransformer.settings import Config

plain_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "no", "1e5"]), inner),
    max_leaves=8,
)  # fmt: skip
keys = {
    section.name: [key.name for key in fields(getattr(Config(), section.name))]
    for section in fields(Config)
}
any_sections = st.fixed_dictionaries(
    {},
    optional={
        name: st.dictionaries(
            st.sampled_from([*names, "nonsense"]),
            plain_data
            | st.integers()
            | st.sampled_from([10**400, "", "pre", "en-es", "recurrent", "lstm", "none"]),
        )
        for name, names in keys.items()
    },
)
