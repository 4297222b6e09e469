"""Llama, Mistral, Qwen2 and Qwen3: one decoder, told apart by what their weights hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import kernels
from engine.model.checkpoint import Checkpoint, LayerWeights
from engine.model.layer_slice import LayerSlice
from engine.model.rope import inverse_frequencies
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.weights import PackedWeight, Weight

Progress = Callable[[float, str], None]
Pack = Callable[[Weight | Sequence[Weight]], PackedWeight]


@dataclass(frozen=True, slots=True)
class Layer:
    """`engine.model.checkpoint.LayerWeights` on a device, packed."""

    attention_norm: torch.Tensor
    qkv: PackedWeight
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: PackedWeight
    o_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: PackedWeight
    down: PackedWeight


class CausalLM:
    """A model on one device.

    Args:
        checkpoint: Where the weights come from; read and packed a layer at a time.
        device: Where they go.
        compute: How products are formed; see `kernels.pack`.
        context_window: Positions that may occur; None means the model's own.
        progress: Called with (fraction done, what comes next).

    Attributes:
        config: The model's shape.
        device: As given.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device | str = "cpu",
        compute: str | None = None,
        context_window: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config = config = checkpoint.config
        self.device = torch.device(device)
        report = progress or _silent
        steps = config.num_layers + 2

        def pack(weight: Weight | Sequence[Weight]) -> PackedWeight:
            return kernels.pack(weight, self.device, compute)

        report(0.0, "embedding")
        self._embedding = pack(checkpoint.embedding())
        self._layers: list[Layer] = []
        for index in range(config.num_layers):
            report((index + 1) / steps, f"layer {index + 1} of {config.num_layers}")
            self._layers.append(self._pack_layer(checkpoint.layer(index), pack))
            checkpoint.release()
        report((config.num_layers + 1) / steps, "output layer")
        head = checkpoint.head()
        self._head = self._embedding if head is None else pack(head)
        self._final_norm = self._move(checkpoint.final_norm())
        frequencies = inverse_frequencies(config.rope, config.head_dim)
        positions = context_window or config.context_window
        self._rope = kernels.rope_table(frequencies, positions).to(self.device)
        checkpoint.release()
        report(1.0, "ready")

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed weights."""
        packed = (
            [self._embedding] if self._head is self._embedding else [self._embedding, self._head]
        )
        for layer in self._layers:
            packed += [layer.qkv, layer.o, layer.gate_up, layer.down]
        return sum(weight.nbytes for weight in packed)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: AttentionBatch,
        caches: Sequence[LayerCache],
        logits_rows: torch.Tensor,
        part: LayerSlice | None = None,
    ) -> torch.Tensor:
        """Run one step over concatenated pieces of sequences.

        Args:
            token_ids: int32 or int64 [T].
            positions: int32 or int64 [T]; each token's index in its sequence.
            slots: Dtype of `positions`, [T]; where each token's KV is written.
            batch: Which tokens belong together, and their KV.
            caches: One a layer, written in place.
            logits_rows: int64 [R]; which of the T tokens' logits are wanted, rising.
            part: Says that the last rows go through some layers only; None for none.

        Returns:
            [R, vocab_size], float32, on CUDA bf16.
        """
        eps = self.config.norm_eps
        x = kernels.embedding(token_ids, self._embedding)
        if part is None:
            for layer, cache in zip(self._layers, caches, strict=True):
                self._run_layer(layer, cache, x, positions, slots, batch)
        else:
            self._run_in_part(x, positions, slots, batch, caches, part)
        # Rows rise and are distinct: as many as tokens are all of them.
        wanted = x if len(logits_rows) == len(x) else x[logits_rows]
        return kernels.norm_linear(wanted, self._final_norm, eps, self._head)

    def _run_layer(
        self,
        layer: Layer,
        cache: LayerCache,
        x: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: AttentionBatch,
    ) -> None:
        """One layer, on `x` in place."""
        eps = self.config.norm_eps
        qkv = kernels.norm_linear(x, layer.attention_norm, eps, layer.qkv, layer.qkv_bias)
        attended = kernels.rope_attention(
            qkv, positions, self._rope, cache, slots, batch, self.config.attention_scale,
            layer.q_norm, layer.k_norm, eps,
        )  # fmt: skip
        kernels.linear_add(attended, layer.o, x, layer.o_bias)
        kernels.mlp_add(x, layer.mlp_norm, eps, layer.gate_up, layer.down)

    def _run_in_part(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: AttentionBatch,
        caches: Sequence[LayerCache],
        part: LayerSlice,
    ) -> None:
        """All layers, on `x` in place; the last rows take part in some."""
        num_others = len(x) - part.num_rows
        if part.hidden is not None:
            x[num_others:] = part.hidden
        for index, (layer, cache) in enumerate(zip(self._layers, caches, strict=True)):
            if index in part.layers:
                self._run_layer(layer, cache, x, positions, slots, batch)
            elif part.others is not None:
                rows = slice(num_others)
                self._run_layer(layer, cache, x[rows], positions[rows], slots[rows], part.others)
        part.hidden = x[num_others:]

    def _pack_layer(self, weights: LayerWeights, pack: Pack) -> Layer:
        return Layer(
            attention_norm=self._move(weights.attention_norm),
            qkv=pack(weights.qkv),
            qkv_bias=self._move_optional(weights.qkv_bias),
            q_norm=self._move_optional(weights.q_norm),
            k_norm=self._move_optional(weights.k_norm),
            o=pack(weights.o),
            o_bias=self._move_optional(weights.o_bias),
            mlp_norm=self._move(weights.mlp_norm),
            gate_up=pack(weights.gate_up),
            down=pack(weights.down),
        )

    def _move(self, vector: torch.Tensor) -> torch.Tensor:
        return vector.to(
            self.device, torch.float32 if self.device.type == "cpu" else torch.bfloat16
        )

    def _move_optional(self, vector: torch.Tensor | None) -> torch.Tensor | None:
        return None if vector is None else self._move(vector)


def _silent(fraction: float, what: str) -> None:
    """No one watches."""
