"""The CUDA runner: chunks against single steps, and against the CPU runner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.model.llama import CausalLM
from engine.runner import CpuRunner
from engine.sequence import Sequence
from engine.step import StepPlan, Work

CONFIG = EngineConfig(num_blocks=64, block_size=4, max_running=8)


def make_sequence(number: int, length: int, first_block: int, **sampling: Any) -> Sequence:
    params = SamplingParams(**{"temperature": 0.0, **sampling})
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, 512, (length,), generator=generator).tolist()
    return Sequence(
        id=number, request=SimpleNamespace(sampling=params, request_id=f"r{number}"),
        tokens=tokens, num_prompt_tokens=length, max_tokens=100, seed=1000 + number,
        end_ids=frozenset(), masked_ids=(1, 2), block_names=[], root_name=b"", stream=None,
        arrived_at=0.0, enqueued_at=0.0,
        block_table=list(range(first_block, first_block + 8)),
    )  # fmt: skip


def sequences() -> list[Sequence]:
    return [
        make_sequence(0, 5, 0),
        make_sequence(1, 12, 8, temperature=0.9),
        make_sequence(2, 3, 16, temperature=1.0, top_k=20, top_p=0.8),
        make_sequence(3, 8, 24, temperature=0.7, min_p=0.1),
        make_sequence(4, 4, 32, temperature=0.8, frequency_penalty=0.7),
    ]


def answer(runner: Any, chosen: list[Sequence], num_tokens: int, num_steps: int) -> list[list[int]]:
    """Prefill together, then decode until every sequence has `num_tokens` more."""
    ends = {seq.id: len(seq.tokens) + num_tokens for seq in chosen}
    plan = StepPlan(tuple(Work(seq, 0, len(seq.tokens), True) for seq in chosen))
    while plan.work:
        output = runner.run(plan)
        for item in plan.work:
            item.sequence.tokens += output.tokens[item.sequence.id]
        left = [seq for seq in chosen if len(seq.tokens) < ends[seq.id]]
        plan = StepPlan(
            tuple(
                Work(
                    seq, len(seq.tokens) - 1, 1, True,
                    num_decode_steps=min(num_steps, ends[seq.id] - len(seq.tokens)),
                )
                for seq in left
            )
        )  # fmt: skip
    return [seq.tokens[seq.num_prompt_tokens :] for seq in chosen]


def make_runner(model: CausalLM, device: torch.device, max_steps: int) -> Any:
    from engine.cuda_runner import CudaRunner

    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return CudaRunner(model, CONFIG, device, dtype, max_steps)


@pytest.mark.parametrize("num_steps", [2, 4])
def test_chunks_give_what_single_steps_give(
    device: torch.device, model: CausalLM, num_steps: int
) -> None:
    single = answer(make_runner(model, device, 1), sequences(), 6, 1)
    chunked = answer(make_runner(model, device, num_steps), sequences(), 6, num_steps)
    assert chunked == single
    assert all(len(tokens) == 6 for tokens in single)


def test_like_the_cpu_runner(device: torch.device, model: CausalLM) -> None:
    if device.type == "cuda":
        # The same model in another precision: only the first tokens are sure to agree.
        assert answer(make_runner(model, device, 4), sequences(), 1, 1)
        return
    expected = answer(CpuRunner(model, CONFIG), sequences(), 7, 1)
    assert answer(make_runner(model, device, 3), sequences(), 7, 3) == expected


@pytest.mark.parametrize("kind", ["same", "int8", "fp8"])
def test_chats_on_one_system_prompt_read_it_once(
    device: torch.device, model: CausalLM, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine import shared_prefix
    from engine.cuda_runner import CudaRunner
    from engine.kv_blocks import KV_DTYPES

    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def tokens_of(least_saved_bytes: int) -> tuple[list[list[int]], set[tuple[int, int, bool]]]:
        monkeypatch.setattr(shared_prefix, "_LEAST_SAVED_BYTES", least_saved_bytes)
        runner = CudaRunner(model, CONFIG, device, KV_DTYPES.get(kind, dtype), 2)
        first = make_sequence(0, 18, 0, temperature=0.8)
        runner.run(StepPlan((Work(first, 0, 16, False),)))
        chats = [first, *(make_sequence(i, 2 * i, 8 * i, temperature=0.8) for i in range(1, 4))]
        # The first and the last two go on from the same 16 tokens; the second does not.
        for chat in chats[2:]:
            chat.tokens[:0] = first.tokens[:16]
            chat.block_table[:4] = first.block_table[:4]
        starts = [16, 0, 16, 16]
        plan = tuple(
            Work(chat, start, len(chat.tokens) - start, True)
            for chat, start in zip(chats, starts, strict=True)
        )
        num_steps = 1
        for _ in range(5):
            output = runner.run(StepPlan(plan)).tokens
            for chat in chats:
                assert len(output[chat.id]) == num_steps
                chat.tokens += output[chat.id]
            num_steps = 2
            plan = tuple(
                Work(chat, len(chat.tokens) - 1, 1, True, num_decode_steps=2) for chat in chats
            )
        return [chat.tokens[-9:] for chat in chats], {
            key[1:] for key in runner.shelf if key[0] == "chunk"
        }

    together, chunks = tokens_of(1)
    apart, other_chunks = tokens_of(1 << 40)
    assert all(is_shared for *_, is_shared in chunks)
    assert not any(is_shared for *_, is_shared in other_chunks)
    if device.type == "cpu":
        assert together == apart


def test_copied_blocks_hold_the_same(device: torch.device, model: CausalLM) -> None:
    runner = make_runner(model, device, 1)
    first, second = make_sequence(0, 5, 0), make_sequence(0, 5, 40)
    expected = answer(runner, [first], 3, 1)
    runner.copy_blocks([(0, 40)])
    # The copied block holds the first four tokens; the fifth is computed again.
    output = runner.run(StepPlan((Work(second, 4, 1, True),)))
    assert output.tokens[0] == expected[0][:1]


@pytest.mark.parametrize("pieces", [(28,), (16, 12), (20, 8)], ids=str)
def test_pieces_of_a_prompt_give_what_the_whole_gives(
    device: torch.device, model: CausalLM, pieces: tuple[int, ...]
) -> None:
    runner = make_runner(model, device, 2)
    whole = make_sequence(7, 28, 0, temperature=0.9)
    other = make_sequence(8, 3, 16)
    # Beside another prompt the piece goes through the eager pass.
    both = runner.run(StepPlan((Work(whole, 0, 28, True), Work(other, 0, 3, True))))
    alone = make_sequence(7, 28, 8, temperature=0.9)
    start, output = 0, None
    for size in pieces:
        output = runner.run(StepPlan((Work(alone, start, size, start + size == 28),)))
        start += size
    assert output is not None
    assert output.tokens[7] == both.tokens[7]
    if device.type == "cpu":
        cpu = CpuRunner(model, CONFIG)
        assert cpu.run(StepPlan((Work(whole, 0, 28, True),))).tokens[7] == output.tokens[7]


@pytest.mark.parametrize("sampling", [{}, {"frequency_penalty": 0.5}])
def test_decodes_beside_a_prompt_take_its_pass(
    device: torch.device, model: CausalLM, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]
) -> None:
    from engine import cuda_runner
    from engine.cuda_eager import EagerPass

    passes: list[int] = []
    logits = EagerPass.logits

    def counted(self: EagerPass, inputs: Any) -> Any:
        passes.append(len(inputs.token_ids))
        return logits(self, inputs)

    monkeypatch.setattr(EagerPass, "logits", counted)

    def tokens_of(least_tokens: int) -> list[list[int]]:
        monkeypatch.setattr(cuda_runner, "ONE_PASS_TOKENS", least_tokens)
        runner = make_runner(model, device, 3)
        chats = sequences()[:2]
        runner.run(StepPlan(tuple(Work(seq, 0, len(seq.tokens) - 1, False) for seq in chats)))
        late = [make_sequence(8, 9, 40, **sampling), make_sequence(9, 12, 48)]
        passes.clear()
        for seq in late:
            work = [
                *(Work(chat, len(chat.tokens) - 1, 1, True) for chat in chats),
                Work(seq, 0, len(seq.tokens), True),
            ]
            output = runner.run(StepPlan(tuple(work))).tokens
            chats.append(seq)
            for chat in chats:
                chat.tokens += output[chat.id]
        for _ in range(2):
            work = [Work(chat, len(chat.tokens) - 1, 1, True, num_decode_steps=3) for chat in chats]
            output = runner.run(StepPlan(tuple(work))).tokens
            for chat in chats:
                chat.tokens += output[chat.id]
        return [chat.tokens for chat in chats]

    together = tokens_of(4)
    assert passes[:2] == [2 + 9, 3 + 12]
    apart = tokens_of(1 << 30)
    assert passes[:2] == [9, 12 + (1 if sampling else 0)]
    if device.type == "cpu":
        assert together == apart


def test_more_logits_than_there_is_memory_for_take_several_passes(
    device: torch.device, model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine import cuda_prompts
    from engine.cuda_eager import EagerPass

    sizes: list[int] = []
    logits = EagerPass.logits

    def counted(self: EagerPass, inputs: Any) -> Any:
        sizes.append(len(inputs.logits_rows))
        return logits(self, inputs)

    def tokens_of(most: int) -> dict[int, list[int]]:
        monkeypatch.setattr(cuda_prompts, "MAX_LOGITS_ROWS", most)
        runner = make_runner(model, device, 1)
        chats = sequences()[:4]
        runner.run(StepPlan(tuple(Work(seq, 0, len(seq.tokens) - 1, False) for seq in chats)))
        # With drafts too long for any graph.
        plan = tuple(Work(seq, len(seq.tokens) - 1, 1, True, tuple(range(17))) for seq in chats)
        sizes.clear()
        return runner.run(StepPlan(plan)).tokens

    monkeypatch.setattr(EagerPass, "logits", counted)
    whole = tokens_of(256)
    assert sizes == [4 * 18]
    in_parts = tokens_of(40)
    assert sizes == [2 * 18, 2 * 18]
    if device.type == "cpu":
        assert in_parts == whole
