"""``board``: one chip of a simulated board."""

from coldplate_governor.board.client import BoardClient, BoardRefused, BoardUnreachable
from coldplate_governor.sensors.base import QUANTITIES, WORDS, Readings, SensorError


class BoardSensor:
    """Reads chip ``chip`` of the board at ``address`` (``unix:/path``)."""

    name = "board"

    def __init__(self, address: str, chip: int) -> None:
        self._client = BoardClient(address, timeout_s=1.5)
        self._chip = chip

    def read(self) -> Readings:
        try:
            answer = self._client.read(self._chip)
        except (BoardUnreachable, BoardRefused) as error:
            raise SensorError(f"board: {error}") from error
        return {name: value for name, value in answer.items() if name in QUANTITIES or name in WORDS}
