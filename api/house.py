"""What the routes are given: built once by `app`, read by everyone.

Owns: nothing but the names. Never: makes a client, reads a setting.
"""

from dataclasses import dataclass, field

from api.auth import Keyring
from api.closing import Closing
from api.explaining import Explainer
from api.ledger import Ledger
from api.others import Others
from api.protocol.request import Reading
from api.tally import Tally
from infra.config import Settings
from infra.observability.traces import NO_TRACES, Traces
from scheduler.contract import ClusterView
from scheduler.counts import Counts
from scheduler.dispatch import Dispatcher
from scheduler.draining import Draining
from scheduler.lines import Lines
from scheduler.membership import Membership
from scheduler.sharing import Sharing
from scheduler.turns import Turns


@dataclass(frozen=True, slots=True)
class House:
    """The parts of one API process."""

    settings: Settings
    keyring: Keyring
    membership: Membership
    dispatcher: Dispatcher
    lines: Lines
    sharing: Sharing
    counts: Counts
    turns: Turns
    explainer: Explainer
    closing: Closing
    draining: Draining
    others: Others
    traces: Traces = NO_TRACES
    tally: Tally = field(default_factory=Tally)

    @property
    def reading(self) -> Reading:
        """How clients' bodies are read here."""
        return reading_of(self.settings)

    @property
    def ledger(self) -> Ledger:
        """The requests of this process."""
        return self.others.own

    @property
    def view(self) -> ClusterView:
        return self.membership.view

    def models(self) -> list[str]:
        """Ids of the models served now, those of ready workers first."""
        workers = sorted(self.view.workers, key=lambda w: (w.info.state != "ready", w.info.model))
        return list(dict.fromkeys(w.info.model for w in workers if w.info.model))

    def model(self) -> str:
        """The id that a name served by nobody maps to; empty while no worker has told one."""
        return next(iter(self.models()), "")


def reading_of(settings: Settings) -> Reading:
    """How these settings have bodies read."""
    return Reading(settings.image_urls, settings.merge_repeated, settings.share_base)
