"""Collects the matrices and other parameters of one layer, block by block."""

from attnprof.models.spec import Attention, Layer, Matrix, Mixer, Role, Sharding


class Parts:
    """What a layer (or what surrounds the layers) is made of, filled in by the builders."""

    def __init__(self) -> None:
        self.matrices: list[Matrix] = []
        self.vectors = 0
        self.attention: Attention | None = None
        self.mixer: Mixer | None = None
        self.cross: Attention | None = None
        self.is_shared = False

    def linear(
        self,
        name: str,
        role: Role,
        out_features: int,
        in_features: int,
        *,
        bias: bool = False,
        count: int = 1,
        active: int = 1,
        sharding: Sharding = "split",
    ) -> None:
        """A matrix, or ``count`` of them, with their biases."""
        if out_features and in_features and count:
            self.matrices.append(
                Matrix(name, role, out_features, in_features, count, active, sharding)
            )
        if bias:
            self.vectors += out_features * count

    def vector(self, elements: int) -> None:
        """Parameters that are no matrix: norms, biases, gates, convolutions."""
        self.vectors += elements

    def embedding(
        self, name: str, rows: int, width: int, *, sharding: Sharding = "replicated"
    ) -> None:
        """A table of ``rows`` vectors."""
        if rows and width:
            self.matrices.append(Matrix(name, "embedding", rows, width, sharding=sharding))

    def attention_projections(
        self,
        hidden_size: int,
        shape: Attention,
        *,
        role: Role = "attention",
        prefix: str = "",
        source_size: int | None = None,
        output_size: int | None = None,
        q_bias: bool = False,
        k_bias: bool = False,
        v_bias: bool = False,
        o_bias: bool = False,
        q_copies: int = 1,
        value_is_key: bool = False,
    ) -> None:
        """The four projections of an attention.

        ``q_copies`` is 2 where the query projection also makes the output's gate; a layer that
        reads another one's cache has neither keys nor values; ``value_is_key`` shares one matrix.
        """
        source_size = source_size or hidden_size
        q_width = shape.num_q_heads * shape.head_dim
        self.linear(prefix + "q", role, q_copies * q_width, hidden_size, bias=q_bias)
        if not shape.reads_other_layer:
            k_width = shape.num_kv_heads * shape.head_dim
            v_width = shape.num_kv_heads * shape.v_head_dim
            self.linear(prefix + "k", role, k_width, source_size, bias=k_bias, sharding="kv_heads")
            if not value_is_key:
                self.linear(
                    prefix + "v", role, v_width, source_size, bias=v_bias, sharding="kv_heads"
                )
        o_width = shape.num_q_heads * shape.v_head_dim
        self.linear(prefix + "o", role, output_size or hidden_size, o_width, bias=o_bias)

    def ffn(
        self,
        hidden_size: int,
        width: int,
        *,
        gated: bool = True,
        bias: bool = False,
        role: Role = "ffn",
        count: int = 1,
        active: int = 1,
        prefix: str = "",
    ) -> None:
        """A feed-forward block, or ``count`` experts of that shape."""
        names = ("gate", "up") if gated else ("up",)
        for name in names:
            self.linear(
                prefix + name, role, width, hidden_size, bias=bias, count=count, active=active
            )
        self.linear(
            prefix + "down", role, hidden_size, width, bias=bias, count=count, active=active
        )

    def layer(self) -> Layer:
        """The layer that was collected."""
        return Layer(
            attention=self.attention,
            mixer=self.mixer,
            cross=self.cross,
            matrices=tuple(self.matrices),
            vector_params=self.vectors,
            is_shared=self.is_shared,
        )
