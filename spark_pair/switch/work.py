"""The work of each phase. Where an outcome leads is decided in `machine.py`, never here."""

from __future__ import annotations

from collections.abc import Callable

from .. import verdict as verdicts
from ..description import NONE, ROLES, Server
from ..errors import SparkPairError, UnreachableError
from ..state import PairState
from ..verdict import State
from .bench import A_COMPLETION, Bench
from .checks import Checks
from .cleaning import Cleaning
from .drain import Drain
from .hands import Hands
from .look import Look
from .machine import Outcome, Phase
from .planned import Planned
from .world import BOOTED, AbortedError, AwayError, Job, Side, StepError, World

_BACK_OUT_PHASES = (Phase.OBSERVE, Phase.REFUSE, Phase.DRAIN, Phase.ARM, Phase.KEEPERS)


class Work(Bench):
    """Carries out the phases of one switch on a world."""

    def __init__(
        self, world: World, job: Job, state: PairState, say: Callable[[str], None]
    ) -> None:
        super().__init__(world, job, state, say)
        self.look = Look(self)
        self.checks = Checks(self)
        self.hands = Hands(self)
        self.cleaning = Cleaning(self, self.look, self.hands)
        self.planned = Planned(self)

    def run(self, phase: Phase) -> Outcome:
        """Do one phase; errors become its outcome, with the reason in `job.message`."""
        work: dict[Phase, Callable[[], Outcome]] = {
            Phase.OBSERVE: self.observe,
            Phase.REFUSE: self.refuse,
            Phase.DRAIN: self.drain,
            Phase.ARM: self.arm,
            Phase.KEEPERS: self.keepers,
            Phase.STOP: self.stop,
            Phase.RELEASE: self.release,
            Phase.START: self.start,
            Phase.VERIFY: self.verify,
            Phase.RESTORE: self.restore,
            Phase.COMMIT: self.commit,
            Phase.BACK_OUT: self.back_out,
            Phase.RECOVER: self.recover,
            Phase.CLEAN: self.clean,
        }
        try:
            return work[phase]()
        except AbortedError:
            self._because("aborted by the operator")
            return Outcome.GAVE_UP if phase in _BACK_OUT_PHASES else Outcome.FAILED
        except (SparkPairError, OSError) as error:
            self._because(str(error))
            return Outcome.FAILED
        except Exception as error:  # a bug must not leave the pair without a server
            self._because(f"internal error in {phase}: {type(error).__name__}: {error}")
            return Outcome.FAILED

    def observe(self) -> Outcome:
        """Give every server a verdict, and decide whether there is anything to do."""
        views = self.views()
        away = [role for role in ROLES if views[role] is None]
        if away:
            return self._refuse(
                f"nothing is known about what runs on {self.name(away[0])}: "
                f"{self.silence[away[0]]}. Nothing was touched; mend that and run this again"
            )
        for server in self.description.servers.values():
            self.job.verdicts[server.name] = self.look.verdict(self.running(server), views)
        target = self.job.target
        for name, found in self.job.verdicts.items():
            if found.state is not State.DOWN:
                self.say(f"{name} is {found}")
            if found.state is State.UNKNOWN:
                return self._refuse(f"{name} is {found}; nothing was touched")
        if target == NONE:
            if all(item.state is State.DOWN for item in self.job.verdicts.values()):
                self.job.message = "no model server runs, as asked; nothing to do"
                return Outcome.NOTHING
        elif (done := self._observe_target(self.description.server(target))) is not None:
            return done
        for name, found in self.job.verdicts.items():
            if name == target or self.job.drain == "stop":
                continue
            if found.state is State.STARTING and target != NONE:
                return self._refuse(
                    f"{name} is still starting ({found.why}); nothing was touched. Wait until it "
                    "serves, or stop it with a rollback"
                )
            if found.state is State.MISMATCH:
                return self._refuse(self._mismatch(name))
        self.job.former = self._find_former()
        return Outcome.OK

    def _observe_target(self, server: Server) -> Outcome | None:
        found = self.job.verdicts[server.name]
        if found.state is State.MISMATCH:
            return self._refuse(self._mismatch(server.name))
        if found.state in (State.BUSY, State.STARTING):
            return self._refuse(f"{server.name} is {found}; nothing was touched")
        if found.state is State.SERVING:
            current = self.world.current(server)
            wanted = server.generation.hash if server.generation else None
            rivals = [
                name
                for name, item in self.job.verdicts.items()
                if name != server.name and item.state is not State.DOWN
            ]
            if rivals:
                return self._refuse(
                    f"{server.name} serves, and {rivals[0]} is {self.job.verdicts[rivals[0]]}: "
                    f"two servers at once. Nothing was touched; stop {rivals[0]} by hand first"
                )
            if wanted is None or current == wanted:
                return self._nothing_to_do(server)
            self.say(f"{server.name} runs generation {current}, wanted is {wanted}: restart needed")
        # One that served and is gone without us has broken, as a dead one has.
        served = (self.state.serving or {}).get("server") == server.name
        gone = found.state is State.DOWN and served
        self.job.restart = gone or found.state in (State.DEAD, State.PARTIAL)
        return None

    def _nothing_to_do(self, server: Server) -> Outcome:
        """It serves already: what an earlier run could not finish is finished, the rest left."""
        self.job.message = f"{server.name} serves, verified by a completion; nothing to do"
        left = server.name in self.state.keepers
        if left and not self.job.dry and self.hands.start_keepers(server):
            self.job.changed = True
        self._settle_hold()
        self.remember_serving(server)
        self.world.save(self.state)
        return Outcome.NOTHING

    def _settle_hold(self) -> None:
        if self.job.hold:
            self.state.set_hold("rollback", self.job.reason)
        elif self.job.target == self.description.wanted:
            self.state.hold = None

    def _mismatch(self, name: str) -> str:
        why = self.job.verdicts[name].why
        return (
            f"{name} works, but does not answer as it is described ({why}); "
            f"nothing was touched. Mend model_server_extra.{name} and run --tags service"
        )

    def _find_former(self) -> Side | None:
        for name, found in self.job.verdicts.items():
            if found.state in (State.SERVING, State.BUSY):
                return self.side(self.description.server(name))
        return None

    def refuse(self) -> Outcome:
        """Every check that can be made while the old server still serves."""
        problems = list(self.checks.problems())
        if problems:
            return self._refuse("; ".join(problems) + ". Nothing was touched")
        return Outcome.OK

    def drain(self) -> Outcome:
        """Wait until the servers that are to be stopped have been idle for the quiet period."""
        return Drain(self).all()

    def arm(self) -> Outcome:
        """Write down all that a resume needs, with disk room for the rest of the story."""
        self.check_abort()
        views = self.views()
        for role in ROLES:
            view = views[role]
            if view is None:
                raise UnreachableError(f"{self.name(role)} went away; nothing was touched")
            self.job.boots[role] = view["boot"]
        for server in self.description.servers.values():
            found = verdicts.presence(server, views, self.description)
            if found.state is State.UNKNOWN:
                # It could be stopped, and never be seen to be gone.
                raise StepError(f"{server.name} is {found}; nothing was touched")
        try:
            self.world.reserve()
        except OSError as error:
            raise StepError(
                f"no disk room for the journal on {self.name('head')}: {error}; nothing was "
                "touched. Free some space first"
            ) from error
        self.world.record(
            {
                "event": "armed",
                "former": self.job.former.as_dict() if self.job.former else None,
                "boots": dict(self.job.boots),
                "restart": self.job.restart,
                "verdicts": {name: str(item.state) for name, item in self.job.verdicts.items()},
                "plan": self.job.plan,
            }
        )
        # All that follows is in the disk room set aside; and bringing a server back, which may be
        # needed from now on, never depends on the disk.
        self.world.past_the_point()
        return Outcome.OK

    def keepers(self) -> Outcome:
        """Stop what would revive a server: timers first, before the server itself (fault 13)."""
        self.check_abort()
        self.hands.stop_keepers()
        self.check_abort()
        return self._still_idle()

    def _still_idle(self) -> Outcome:
        """One more look at the load: stopping the keepers took a moment."""
        if self.job.drain == "stop":
            return Outcome.OK
        for name, found in self.job.verdicts.items():
            if found.state not in (State.SERVING, State.BUSY):
                continue
            load = self.load(self.running(self.description.server(name)))
            if load.known and not load.idle:
                self.job.message = f"{name} was asked again at the last moment ({load.words()})"
                return Outcome.GAVE_UP
        return Outcome.OK

    def back_out(self) -> Outcome:
        """Put the keepers back and prove that the old server still generates."""
        former = self.job.former
        if former is None:
            return self._back_out_without_former()
        self.hands.wait_for_both()
        server = self.form(former)
        views = self.both_views()
        found = verdicts.presence(server, views, self.description)
        if found.state in (State.DOWN, State.PARTIAL):
            return Outcome.FAILED
        if (
            found.state is State.UP
            and self.look.assess(server, views, abortable=False).state is State.DEAD
        ):
            return Outcome.FAILED
        self.hands.start_keepers(server)
        self.world.save(self.state)
        message = self.job.message or "backed out"
        self.job.message = self._with_notes(f"{message}; {server.name} serves as before")
        return Outcome.OK

    def _back_out_without_former(self) -> Outcome:
        """Nobody served: what was found, dead servers and their keepers, is left as it was."""
        views = self.both_views()
        for name, found in self.job.verdicts.items():
            server = self.description.server(name)
            now = verdicts.presence(server, views, self.description).state
            stopped = found.state is State.DEAD and now is State.PARTIAL
            if stopped or (now is State.DOWN) is not (found.state is State.DOWN):
                self.say(f"{name} was {found.state} and is {now}: the stop had begun")
                return Outcome.FAILED
        for name, record in list(self.state.keepers.items()):
            if record["switch"] == self.job.id:
                self.hands.start_keepers(self.description.server(name))
        self.world.save(self.state)
        message = self.job.message or "backed out"
        self.job.message = self._with_notes(f"{message}; no server had been serving, none does")
        return Outcome.OK

    def _with_notes(self, message: str) -> str:
        return "; but ".join([message, *dict.fromkeys(self.job.notes)])

    def stop(self) -> Outcome:
        """Stop every server that is there, and see on both machines that nothing is left."""
        self.check_abort()
        self.job.changed = True
        self.world.past_the_point()
        self.state.serving = None
        self.hands.stop_everything()
        return Outcome.OK

    def release(self) -> Outcome:
        """Wait until both machines have the memory that the new server's launcher asks for."""
        if self.job.target != NONE:
            self.hands.wait_for_memory(self.description.server(self.job.target), abortable=True)
        return Outcome.OK

    def start(self) -> Outcome:
        """Flip the generation, start the units in order, wait until the API is there."""
        if self.job.target == NONE:
            # What is enabled at boot comes up by itself. Both were seen empty, so one that is away
            # now is no reason to bring a server back that nobody wants.
            self.hands.check_boots(self.views())
            return Outcome.NOTHING
        self.check_abort()
        server = self.description.server(self.job.target)
        self.hands.check_boots(self.both_views())
        self.hands.start_server(Side(server.name, server.generation), abortable=True)
        self.hands.check_boots(self.both_views())
        return Outcome.OK

    def verify(self) -> Outcome:
        """Prove the new server: as planned, a real completion, all parts, context, metrics."""
        self.check_abort()
        server = self.description.server(self.job.target)
        self.planned.prove(server)
        self.hands.verify_server(server, strict=self.job.target != self.description.fallback)
        # A proof may take a minute, and whoever asked meanwhile was promised the former server.
        self.check_abort()
        return Outcome.OK

    def restore(self) -> Outcome:
        """Bring the keepers of the server that serves now back, last."""
        if self.job.target != NONE:
            self.hands.start_keepers(self.description.server(self.job.target))
        return Outcome.OK

    def commit(self) -> Outcome:
        """Keep what was reached: who serves, and whether a plain run may change it again."""
        self._settle_hold()
        if self.job.target == NONE:
            self.state.serving = None
            self.job.message = "both machines are empty: no model server runs, as asked"
        else:
            message = f"{self.job.target} serves, verified by {self._proof()}"
            self.job.message = self._with_notes(message)
        self.state.suspects.clear()
        self.world.save(self.state)
        return Outcome.OK

    def candidates(self) -> list[Side]:
        """Who may serve again, best first: the former, then the fallback, else the target again.

        Where a machine was booted meanwhile, the fallback comes first: a boot means the fallback,
        and it is what comes up there by itself.
        """
        sides = [self.job.former] if self.job.former else []
        fallback = self.description.fallback
        if fallback != NONE and fallback not in [side.server for side in sides]:
            sides.append(Side(fallback, self.description.server(fallback).generation))
        if self.job.booted:
            sides.sort(key=lambda side: side.server != fallback)
        if not sides and self.job.target != NONE:
            sides.append(Side(self.job.target, self.description.server(self.job.target).generation))
        return sides

    def recover(self) -> Outcome:
        """Bring the next candidate back; every step proven on both machines."""
        self.world.past_the_point()
        self.job.changed = True
        self.state.serving = None
        self.job.cause = self.job.cause or self.job.message or "the switch was interrupted"
        if self.job.attempts >= len(self.candidates()):
            self.job.message = f"{self.job.cause}; there is no server left to bring back"
            return Outcome.FAILED
        away = self._see_who_was_booted()
        sides = self.candidates()
        side = sides[self.job.attempts]
        self.job.attempts += 1
        self.say(f"bringing {side} back")
        try:
            if away:
                raise away
            self._bring_back(side)
        except Exception as error:  # whatever it was, the next candidate may still come back
            self.say(f"{side} did not come back: {error}")
            self.job.message = f"{self.job.cause}; {side.server} did not come back: {error}"
            if isinstance(error, AwayError):
                return Outcome.FAILED
            more = self.job.attempts < len(sides) or self._was_booted_meanwhile()
            return Outcome.AGAIN if more else Outcome.FAILED
        self.state.set_hold("recovery", self.job.cause)
        self.world.save(self.state)
        message = f"{self.job.cause}. {side.server} serves, verified by {self._proof()}"
        self.job.message = self._with_notes(message)
        return Outcome.OK

    def _see_who_was_booted(self) -> AwayError | None:
        """Wait for both machines, and notice when one was booted; the error when one stays away."""
        try:
            self.hands.wait_for_both()
            self.hands.check_boots(self.views())
        except AwayError as error:
            return error
        except StepError as error:
            if not self.job.booted:
                self.say(f"{error}: what a boot brings up comes first")
                self.job.booted = True
                # The order is another one now, and none of it was tried.
                self.job.attempts = 0
                self.world.record({"event": BOOTED})
        return None

    def _was_booted_meanwhile(self) -> bool:
        """Whether an attempt failed because a machine went down under it: the first time only."""
        before = self.job.booted
        return self._see_who_was_booted() is None and self.job.booted and not before

    def _proof(self) -> str:
        """What has proven the server that serves."""
        return str((self.state.serving or {}).get("verified_by", A_COMPLETION))

    def _bring_back(self, side: Side) -> None:
        server = self.form(side)
        self.hands.stop_keepers()
        found = self.job.verdicts.get(server.name)
        # One that was proven dead is not asked again: it would only look busy with our questions.
        gentle = not server.ranks and not (found and found.state is State.DEAD)
        self.hands.stop_everything(keep=server.name if gentle else None)
        self.hands.wait_for_memory(server, abortable=False)
        try:
            self.hands.start_server(side, abortable=False)
            self.hands.verify_server(server, strict=False)
        except StepError as error:
            if not gentle:
                raise
            # Half of it may have been running and wedged: once more from nothing.
            self.say(f"{error}; stopping all of {server.name}, then once more")
            self.hands.stop_everything()
            self.hands.start_server(side, abortable=False)
            self.hands.verify_server(server, strict=False)
        self.hands.start_keepers(server)

    def wait_for_fallback(self, server: Server) -> bool:
        """After a boot, with nothing else there: let it come up by itself; nothing is stopped."""
        side = self.side(server)
        try:
            self.hands.wait_for_both()
            self.hands.start_server(side, abortable=False)
            self.hands.verify_server(self.form(side), strict=False)
        except SparkPairError as error:
            self._because(f"{server.name} does not serve after the boot: {error}")
            return False
        self.hands.start_keepers(server)
        self.world.save(self.state)
        return True

    def clean(self) -> Outcome:
        """Nobody could be brought back: leave both machines empty, and say what is left to do."""
        left = self.cleaning.clean()
        self.state.serving = None
        self.state.set_hold("recovery", self.job.cause)
        self.world.save(self.state)
        # On a machine that cannot be asked a server may even answer.
        nobody = "NO MODEL SERVER IS KNOWN TO ANSWER" if left else "NO MODEL SERVER ANSWERS"
        said = [] if self.cleaning.answering else [nobody]
        said.append(self.job.message)
        if left:
            said.append(f"Not all is stopped: {'; '.join(left)}")
        self.job.message = (
            f"{'. '.join(said)}. When the cause is mended, run 'spark-pair resume' on "
            f"{self.name('head')}"
        )
        return Outcome.FAILED if left else Outcome.OK

    def _because(self, why: str) -> None:
        self.job.message = why
        self.say(why)

    def _refuse(self, why: str) -> Outcome:
        self.job.message = why
        return Outcome.REFUSED
