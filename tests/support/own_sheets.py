"""Sheets as a user may write them: of a homework, and with every key."""

HOMEWORK = """
title: Homework
given:
  X: [[1, 0], [0, 1], [1, 1]]
  W_Q: [[1, 2], [0, 1]]
  W_K: [[0, 1], [1, 1]]
  W_V: [[2, 0], [1, 3]]
steps:
  - name: Q
    compute: times(X, W_Q)
    printed: [[1, 2], [0, 1], [1, 3]]
  - name: K
    compute: times(X, W_K)
    printed: [[0, 1], [1, 1], [1, 2]]
  - name: V
    compute: times(X, W_V)
    printed: [[2, 0], [1, 3], [3, 3]]
  - name: E
    compute: dot_scores(Q, K)
    printed: [[2, 3, 5], [1, 1, 2], [3, 4, 7]]
  - name: S
    compute: scaled(E, 2)
    printed: [[1.41, 2.12, 3.54], [0.71, 0.71, 1.41], [2.12, 2.83, 4.95]]
  - name: A
    compute: softmax(S)
    printed: [[0.09, 0.18, 0.73], [0.25, 0.25, 0.50], [0.05, 0.10, 0.85]]
  - name: Y
    compute: times(A, V)
    printed: [[2.55, 2.73], [2.25, 2.25], [2.75, 2.85]]
"""
FULL_SHEET = """
title: All keys
source: Nowhere
rounding: any
conventions: {scaled: no}
readings: {X: a guess}
hidden_note: longer
given: {X: [[1, 2], [3, 4]], W: [[1, 0], [0, 1]]}
hidden: {W: [[1.01, 0], [0, 1]]}
steps:
  - {name: Q, says: Q = X W, compute: 'times(X, W)', also: [X], printed: [[1, 2], [3, 5]],
     decimals: 0, reprint: false, verdict: [[agrees, agrees], [agrees, slip 1]], note: hm}
  - {name: R, compute: Q, printed: [[1, 2], [3, 5]], reprint: true,
     scan: [{cell: [1, 1], shows: l, why: looks like it}], uncheckable: {cells: [[1, 2]], needs: x}}
  - {name: t, text: all is well, check: 'same(X, X)', verdict: agrees}
slips:
  - {number: 1, step: Q, cells: [[2, 2]], wrote: [5], right: [4], why: a slip, as: '5'}
"""
