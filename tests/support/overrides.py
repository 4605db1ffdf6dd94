"""Write changed settings as the options of a command."""


def overrides(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]
