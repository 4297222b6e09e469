"""What checking guesses adds to a step, and whether it pays, batch size by batch size."""

from __future__ import annotations

from collections.abc import Callable

# Weight of the newest plain step, and by what factor a step counts at most.
_NEW_SHARE = 0.1
_MAX_RISE = 2.0
# Plain steps that must be known, all of them of the last so many steps.
_LEAST_PLAIN = 2
_STALE_STEPS = 1024
# Checking steps in a row before a plain one, to know what those take by now.
_PLAIN_EVERY = 64
# Checking steps after which it is asked whether they paid, and steps without any after
# those that didn't: doubled each time, up to a limit.
_TRIAL = 16
_FIRST_PAUSE = 64
_LONGEST_PAUSE = 8192
# What a probe may cost, as a share of a plain step.
_PROBE_SHARE = 0.25
# What is expected beforehand counts as so many steps with so many guesses.
_PRIOR_STEPS = 2.0
_PRIOR_GUESSES = 4.0
# What a guess is expected to cost at most, before any of this size was checked, as a share of
# a token's part in a plain step.
_MOST_EXPECTED = 0.5
# Steps after which an old one counts a third: of one batch size, of all.
_MEMORY = 50.0
_MEMORY_ALL = 200.0


class _Line:
    """Extra milliseconds = fixed + each * guesses, by least squares beside an expectation."""

    __slots__ = ("_kept", "_n", "_x", "_xx", "_xy", "_y")

    def __init__(self, memory: float) -> None:
        self._kept = 1 - 1 / memory
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, num_guesses: int, extra_ms: float) -> None:
        """One more step."""
        kept = self._kept
        self._n = kept * self._n + 1
        self._x = kept * self._x + num_guesses
        self._y = kept * self._y + extra_ms
        self._xx = kept * self._xx + num_guesses * num_guesses
        self._xy = kept * self._xy + num_guesses * extra_ms

    def solve(self, fixed_ms: float, each_ms: float) -> tuple[float, float]:
        """(fixed, each), neither below 0, where these two are expected."""
        prior_xx = _PRIOR_STEPS * _PRIOR_GUESSES**2
        n, xx = self._n + _PRIOR_STEPS, self._xx + prior_xx
        y, xy = self._y + _PRIOR_STEPS * fixed_ms, self._xy + prior_xx * each_ms
        each = max((n * xy - self._x * y) / (n * xx - self._x * self._x), 0.0)
        return max((y - each * self._x) / n, 0.0), each


class Account:
    """Steps of one batch size: what they take, and what guesses won and lost.

    Attributes:
        num_sequences: The batch size.
        plain_ms: Usual time of a step without guesses; 0 before any.
        fixed_ms: What checking guesses adds to it, however few.
        each_ms: What each guessed token adds on top.
    """

    def __init__(self, num_sequences: int) -> None:
        self.num_sequences = num_sequences
        self.plain_ms = self.fixed_ms = self.each_ms = 0.0
        self._line = _Line(_MEMORY)
        self._num_plain = self._num_since_plain = 0
        self._num_steps = self._last_step = self._resume_at = self._last_check = 0
        self._pause = _FIRST_PAUSE
        self._num_tried, self._won_ms = 0, 0.0

    @property
    def token_ms(self) -> float:
        """What a token costs in a plain step: the worth of a guess that is right."""
        return self.plain_ms / self.num_sequences

    @property
    def may_check(self) -> bool:
        """Whether plain steps are known well enough, and the last guesses no loss."""
        return (
            self._num_plain >= _LEAST_PLAIN
            and self._num_since_plain < _PLAIN_EVERY
            and self._num_steps >= self._resume_at
        )

    @property
    def may_probe(self) -> bool:
        """Whether checking may be tried although it seems to cost too much."""
        return self.may_check and self._num_steps - self._last_check >= self._pause

    @property
    def num_probed(self) -> int:
        """Guesses that a probe takes: what they seem to cost is bounded."""
        return max(int(_PROBE_SHARE * self.plain_ms / self.each_ms), 1) if self.each_ms else 1

    def gain(self, num_guesses: int, expected_right: float) -> float:
        """By what factor a step with guesses would make more tokens a second."""
        step_ms = self.plain_ms + self.fixed_ms + self.each_ms * num_guesses
        return (1 + expected_right / self.num_sequences) * self.plain_ms / step_ms

    def begin_step(self, step: int, fixed_ms: float, each_ms: float) -> None:
        """A step of this size comes.

        Args:
            step: Its number among those of all sizes.
            fixed_ms: What guesses cost at other sizes.
            each_ms: Likewise.
        """
        if step - self._last_step > _STALE_STEPS:
            self._num_plain = 0
        self._last_step = step
        self._num_steps += 1
        # Short prompts say too much: their tokens bear all that a step costs in itself.
        likely_ms = min(each_ms, _MOST_EXPECTED * self.token_ms) if self.plain_ms else each_ms
        self.fixed_ms, self.each_ms = self._line.solve(fixed_ms, likely_ms)
        if self._num_tried >= _TRIAL:
            lost = self._won_ms < 0
            self._resume_at = self._num_steps + self._pause if lost else 0
            self._pause = min(2 * self._pause, _LONGEST_PAUSE) if lost else _FIRST_PAUSE
            self._num_tried, self._won_ms = 0, 0.0

    def record_plain(self, elapsed_ms: float) -> None:
        """Note a step without guesses."""
        self._num_since_plain = 0
        self._num_plain += 1
        if self._num_plain == 1:
            self.plain_ms = elapsed_ms
            return
        share = max(_NEW_SHARE, 1 / self._num_plain)
        self.plain_ms += share * (min(elapsed_ms, _MAX_RISE * self.plain_ms) - self.plain_ms)

    def record_checked(self, num_guesses: int, elapsed_ms: float) -> float:
        """Note a step with guesses; what it took longer than a plain one."""
        expected_ms = self.plain_ms + self.fixed_ms + self.each_ms * num_guesses
        extra_ms = min(elapsed_ms, _MAX_RISE * expected_ms) - self.plain_ms
        self._line.add(num_guesses, extra_ms)
        self._num_since_plain += 1
        self._num_tried += 1
        self._last_check = self._num_steps
        self._won_ms -= extra_ms
        return extra_ms

    def won(self, num_right: int) -> None:
        """Of the last checking step's guesses, so many more were right."""
        self._won_ms += num_right * self.token_ms


class GuessCosts:
    """An account for each batch size, which know of each other what a guess costs.

    Args:
        token_ms: What a token more costs in any step, as far as known beforehand.
    """

    def __init__(self, token_ms: Callable[[], float]) -> None:
        self._token_ms = token_ms
        self._accounts: dict[int, Account] = {}
        self._line = _Line(_MEMORY_ALL)
        self._num_steps = 0

    def begin_step(self, num_sequences: int) -> Account:
        """The account of the step that comes."""
        self._num_steps += 1
        account = self._accounts.get(num_sequences)
        if account is None:
            account = self._accounts[num_sequences] = Account(num_sequences)
        account.begin_step(self._num_steps, *self._line.solve(0.0, self._token_ms()))
        return account

    def record(self, num_sequences: int, num_guesses: int, elapsed_ms: float) -> None:
        """Note the time of a step of decodes alone."""
        account = self._accounts.get(num_sequences)
        if account is None:
            # Nobody asked before it for guesses.
            return
        if num_guesses:
            self._line.add(num_guesses, account.record_checked(num_guesses, elapsed_ms))
        else:
            account.record_plain(elapsed_ms)
