"""Rank 0's HTTP side: what the engine adds to an OpenAI-style service."""

from __future__ import annotations

from typing import Any, ClassVar

from standin.lanes import Lanes
from standin.service import Call, Handler, RefusedError, RunningError, Service, digest
from standin.simulation import Fault, Faults
from standin.speech import Speech

from tensorfold_standin.keys import Keys
from tensorfold_standin.link import LeaderLink
from tensorfold_standin.options import ServeOptions, round_rows

RESERVATION_STEP = 2048
MAX_TOP_K = 56
EFFORTS = {"minimal": 25, "low": 50, "medium": 62, "high": 75, "xhigh": 88, "max": 100}
STRUCTURED_OUTPUT = (
    "structured output (response_format and the guided_* fields) is not supported by this engine "
    "yet"
)
CONTEXT_FULL = "the prompt and its max_tokens do not fit the context window"


class Engine(Service):
    """One model over two ranks, ``parallel`` lanes over one shared pool of positions."""

    owner = "tensorfold"
    wrong_model = "DeepSeek-V4.1-Flash-Other"

    def __init__(
        self, options: ServeOptions, context: int, link: LeaderLink, faults: Faults, keys: Keys
    ) -> None:
        super().__init__(Lanes(options.parallel, context), faults)
        self.options = options
        self.keys = keys
        self.model = options.name
        self.context = context
        self.default_max_tokens = options.max_tokens
        self._link = link
        self._rows = round_rows()

    def default_thinking(self) -> bool:
        """The server's own setting."""
        return self.options.thinking

    def refuse(self, body: dict[str, Any]) -> None:
        """Structured output and forced tool calls are refused before anything runs."""
        response_format = body.get("response_format")
        kind = response_format.get("type") if isinstance(response_format, dict) else None
        guided = any(key.startswith("guided_") for key in body)
        if guided or kind in ("json_object", "json_schema"):
            raise RefusedError(400, STRUCTURED_OUTPUT, type="invalid_request_error")
        choice = body.get("tool_choice")
        if choice == "required" or isinstance(choice, dict):
            raise RefusedError(
                400,
                'tool_choice "required" or a named function is not supported by this engine yet: '
                'send "auto"',
                type="invalid_request_error",
            )

    def reservation(self, call: Call) -> int:
        """The prompt, the whole reply budget and the rows in flight, in steps of 2048."""
        wanted = call.prompt_tokens + call.max_tokens + self._rows + 2
        steps = -(-wanted // RESERVATION_STEP)
        # A reservation beyond the pool fails once it runs; here it must only not wait for ever.
        return min(steps * RESERVATION_STEP, self.context or 0)

    def check_running(self, call: Call) -> None:
        """The sampler's limits surface only here, not as a clean 400."""
        if call.prompt_tokens + call.max_tokens + self._rows + 2 > (self.context or 0):
            raise RunningError(CONTEXT_FULL)
        temperature = call.body.get("temperature", self.options.temperature)
        top_k = call.body.get("top_k", self.options.top_k)
        if isinstance(temperature, (int, float)) and temperature > 0 and isinstance(top_k, int):
            if top_k > MAX_TOP_K:
                raise RunningError("TooManyCandidates")
            if top_k <= 0:
                raise RunningError(
                    "this model runs tensor parallel over two GPUs: set TF_TP_WORLD=2"
                )

    def advances(self) -> bool:
        """Every decode round needs both ranks."""
        return self._link.advances()

    def health(self) -> dict[str, Any]:
        """Answers 200 in any case: it does not prove that the engine runs."""
        if self.keys.required:
            return {"status": "ok"}
        return {
            "status": "ok",
            "model": self.model,
            "model_ids": [self.model],
            "max_batch_size": self.options.parallel,
            "warming": False,
            "memory": {"active": 0, "cache": 0, "peak": 0},
            "live": {
                "requests_running": self.lanes.running,
                "requests_waiting": self.lanes.waiting,
            },
        }

    def metrics_text(self, fault: Fault) -> str:
        """Prometheus text; integers without labels."""
        running = self.lanes.running + fault.busy
        if fault.mode == "zombie":
            running += 1
        with self.lock:
            counters = self.counters
            queue = {"running": running, "waiting": self.lanes.waiting}
            gauges: dict[str, int] = {}
            if fault.mode != "no_metrics":
                for name, value in queue.items():
                    gauges[f"requests_{name}"] = value
                    gauges[f"num_requests_{name}"] = value
            totals = {
                "prompt_tokens_total": counters.prompt_tokens,
                "generation_tokens_total": counters.generation_tokens,
                "mtp_drafted_total": counters.drafted,
                "mtp_accepted_total": counters.accepted,
                "spec_decode_num_draft_tokens_total": counters.drafted,
                "spec_decode_num_accepted_tokens_total": counters.accepted,
                "client_disconnections_total": counters.disconnections,
            }
            sums = {
                "request_latency_seconds": counters.latency_seconds,
                "e2e_request_latency_seconds": counters.latency_seconds,
                "time_to_first_token_seconds": counters.first_token_seconds,
            }
            requests = counters.requests
        lines: list[str] = []
        for kind, values in (("gauge", gauges), ("counter", totals)):
            for name, value in values.items():
                lines += [f"# TYPE tensorfold:{name} {kind}", f"tensorfold:{name} {value}"]
        for name, seconds in sums.items():
            lines += [
                f"# TYPE tensorfold:{name} histogram",
                f'tensorfold:{name}_bucket{{le="+Inf"}} {requests}',
                f"tensorfold:{name}_sum {seconds:.6f}",
                f"tensorfold:{name}_count {requests}",
            ]
        share = round(self.lanes.used_share, 6) or 0
        lines += [
            "# TYPE tensorfold:kv_cache_usage_ratio gauge",
            f'tensorfold:kv_cache_usage_ratio{{pool="0"}} {share}',
            "# TYPE tensorfold:kv_cache_usage_perc gauge",
            f'tensorfold:kv_cache_usage_perc{{stream="0"}} {share}',
        ]
        return "\n".join(lines) + "\n"

    def reply_extras(self, call: Call, said: Speech, seconds: float) -> dict[str, Any]:
        """The engine's own fields."""
        rounds = -(-said.tokens // 3)
        return {
            "exact_mode": "exact",
            "tensorfold": {
                "enable_thinking": call.thinking,
                "reasoning_effort": EFFORTS.get(call.effort, call.effort),
                "engine": "dsv41",
                "time_to_first_token": round(seconds, 4),
                "drafts": True,
                "token_sha": digest(said),
            },
            "speculative": {
                "rounds": rounds,
                "drafted": 2 * rounds,
                "accepted": max(0, said.tokens - rounds),
            },
        }

    def log_done(self, call: Call, said: Speech, finish: str) -> None:
        """One line a reply; an instant stop shows as ``tokens=1 … finish=stop``."""
        rounds = -(-said.tokens // 3)
        if call.thinking and finish == "length" and said.reasoning and not said.content:
            print(
                "[tensorfold] warning: a reply reached max_tokens while still thinking, so it has "
                "no content",
                flush=True,
            )
        print(
            f"[tensorfold] done {call.ident} prompt={call.prompt_tokens} cached=0 "
            f"thinking={call.thinking} effort={call.effort} tokens={said.tokens} "
            f"sha={digest(said)} finish={finish} rounds={rounds} "
            f"accepted={max(0, said.tokens - rounds)}/{2 * rounds}",
            flush=True,
        )


class EngineHandler(Handler):
    """Adds the key check to the routes; ``/`` and ``/health`` are never gated."""

    service: ClassVar[Engine]

    def allowed(self, path: str) -> bool:
        """Whether the caller may use a path; answers 401 when not."""
        engine = self.service
        open_paths = {"/", "/health"}
        if engine.options.metrics_open:
            open_paths |= {"/metrics", "/v1/metrics"}
        if path in open_paths or not engine.keys.required:
            return True
        if engine.keys.accepts(
            self.headers.get("Authorization") or "", self.headers.get("x-api-key") or ""
        ):
            return True
        error = {
            "message": "A valid API key is required",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_api_key",
        }
        self.close_connection = True
        self.send_json(401, {"error": error}, WWW_Authenticate="Bearer", Connection="close")
        return False
