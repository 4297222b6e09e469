"""Log lines as another program reads them."""

import asyncio
import json
import subprocess
import sys

PROGRAM = """
import asyncio, logging
from engine.contract.logs import configure_logging, log_context

configure_logging("info", FORM)
logger = logging.getLogger("app.test")

async def work(number):
    with log_context(request_id=f"req_{number}"):
        await asyncio.sleep(0)
        await asyncio.create_task(later())

async def later():
    logger.info('said "%s"\\nтwo lines', "x", extra={"seconds": 1.5, "odd": object})

async def main():
    await asyncio.gather(work(1), work(2))
    logger.debug("not shown")
    try:
        1 / 0
    except ZeroDivisionError:
        logger.exception("failed")

asyncio.run(main())
"""


def lines(form: str) -> list[str]:
    program = PROGRAM.replace("FORM", repr(form))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr.splitlines()


async def test_json_lines_hold_every_field_and_the_context_of_their_own_task() -> None:
    first, second, third = map(json.loads, await asyncio.to_thread(lines, "json"))
    assert first["message"] == 'said "x"\nтwo lines'
    assert (first["level"], first["logger"], first["seconds"]) == ("info", "app.test", 1.5)
    assert (first["request_id"], second["request_id"]) == ("req_1", "req_2")
    assert first["time"].endswith("+00:00")
    assert "request_id" not in third
    assert "ZeroDivisionError" in third["exception"]


async def test_text_lines_end_in_their_fields() -> None:
    shown = await asyncio.to_thread(lines, "text")
    assert 'INFO app.test said "x"' in shown[0]
    assert "request_id=req_1 seconds=1.5" in shown[1]
    assert shown[-1] == "ZeroDivisionError: division by zero"
