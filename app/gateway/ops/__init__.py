"""The operator's view: what all gateways and workers do, for `/ops`."""

from app.gateway.ops.access import OpsAccess, parse_ops_token
from app.gateway.ops.board import OpsBoard
from app.gateway.ops.routes import OpsRoutes

__all__ = ["OpsAccess", "OpsBoard", "OpsRoutes", "parse_ops_token"]
