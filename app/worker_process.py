"""How a worker process is started, and what is said of it when it has ended."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from redis.exceptions import RedisError

from app.models import ModelFile
from app.redis_client import make_client
from app.settings import DoctorSettings, ProfileSettings, WorkerSettings, without_our_variables
from engine.contract import keys

logger = logging.getLogger(__name__)

REDIS_URL_VARIABLE = "REPARTEE_REDIS_URL"


def worker_command(settings: WorkerSettings, model: ModelFile) -> list[str]:
    """Program and arguments, without the Redis URL: arguments are visible to every user."""
    return [
        sys.executable,
        "-m",
        "engine.worker",
        "--model",
        str(model.path),
        "--kv-blocks",
        str(settings.kv_blocks),
        "--host-kv-mb",
        str(settings.host_kv_mb),
        "--max-running",
        str(settings.max_running),
        "--max-wait",
        settings.max_wait,
        "--max-waiting",
        settings.max_waiting,
        "--ageing",
        f"{settings.ageing_s:g}",
        "--batch-wait",
        f"{settings.batch_wait_s:g}",
        "--speculation",
        settings.speculation,
        "--threads",
        str(settings.threads),
        "--device",
        settings.device,
        "--compute",
        settings.compute,
        "--kv-dtype",
        settings.kv_dtype,
        "--head",
        settings.head,
        "--grace",
        f"{settings.grace_s:g}",
        "--log-level",
        settings.log_level,
        "--log-format",
        settings.log_format,
    ]


def profile_command(settings: ProfileSettings, model: ModelFile) -> list[str]:
    """Program and arguments of a profile."""
    return [
        *(sys.executable, "-m", "engine.profile"),
        *("--model", str(model.path)),
        *("--speculation", settings.speculation),
        *("--threads", str(settings.threads)),
        *("--device", settings.device),
        *("--compute", settings.compute),
        *("--kv-dtype", settings.kv_dtype),
        *("--head", settings.head),
        *("--trace", str(settings.trace)),
    ]


def engine_environment(
    settings: WorkerSettings | DoctorSettings | ProfileSettings, environ: Mapping[str, str]
) -> dict[str, str]:
    """`environ` with only those of our variables that the kernels read."""
    ours = {"REPARTEE_NATIVE": str(int(settings.native))}
    if settings.cache_dir is not None:
        ours["REPARTEE_CACHE_DIR"] = str(settings.cache_dir)
    return {**without_our_variables(environ), **ours}


def worker_environment(settings: WorkerSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """A worker's environment; the Redis URL in it may hold a password."""
    return {**engine_environment(settings, environ), REDIS_URL_VARIABLE: settings.redis_url}


async def announce_exit(redis_url: str, worker_id: str) -> None:
    """Tell the gateways that a worker's process has ended, whatever it had in hand.

    They would find out by its heartbeats, seconds later.
    """
    client = make_client(redis_url, "repartee-supervisor")
    try:
        await client.set(keys.worker(worker_id), keys.WORKER_GONE, ex=keys.WORKER_GONE_TTL_S)
    except (RedisError, OSError) as error:
        logger.info("worker %s is left to be found dead: %s", worker_id, error)
    finally:
        await client.aclose()
