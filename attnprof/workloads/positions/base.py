"""What every position scheme can be asked, answered as the scheme that does nothing."""

import torch


class Position:
    """Where the tokens of one attention are. This one says nothing: the scheme ``none``.

    Positions count from the first token of a sequence. A scheme overrides what it does: it turns
    queries and keys (``rotate``), adds to scores (``constant_bias``, ``query_bias``) or to what a
    layer is given (``embed``). Its tables are made once and held between calls, as engines do.
    """

    @property
    def table_bytes(self) -> int:
        """Of the tables that are held between calls."""
        return 0

    def rotate(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """Queries or keys turned by where they are.

        Args:
            x: ``[batch, heads, tokens, head_dim]``, at ``first`` to ``first + tokens - 1``.
        """
        return x

    def constant_bias(
        self, q_first: int, q_len: int, kv_first: int, kv_len: int
    ) -> torch.Tensor | None:
        """What is added to scores whatever the queries are, ``[1, num_q_heads, q_len, kv_len]``.

        Said of all pairs, masked or not. Not scaled: added to scores that are scaled already.
        """
        return None

    def query_bias(
        self, q: torch.Tensor, q_first: int, kv_first: int, kv_len: int
    ) -> torch.Tensor | None:
        """What is added to scores by the query, ``[batch, num_q_heads, q_len, kv_len]``.

        Scaled as the scores are, by ``head_dim ** -0.5``.

        Args:
            q: ``[batch, num_q_heads, q_len, head_dim]``, the first at ``q_first``.
        """
        return None

    def bias_of(self, head: int, distances: torch.Tensor) -> torch.Tensor | None:
        """``constant_bias`` said once more, pair by pair and in float64, for the reference.

        Of Alibi, T5's and Shaw's biases :mod:`attnprof.workloads.places` has formulas of its own.

        Args:
            distances: Of keys from queries, ``[rows, keys]``.
        """
        return None

    def embed(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """What a layer is given, absolute positions added.

        Args:
            x: ``[batch, tokens, hidden_size]``, the first token at ``first``.
        """
        return x
