"""The tokenizer of one model: text and conversations to ids, ids to text."""

import json
from collections import abc
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import PreTokenizer, Sequence

from coldplate_server.errors import InvalidRequest, NoChatTemplate, Violation
from coldplate_server.request import ChatMessage, Conversation
from coldplate_server.text.detokenizer import Detokenizer, TableDetokenizer, WindowDetokenizer
from coldplate_server.text.model_files import ModelFiles, ModelFilesError
from coldplate_server.text.pieces import piece_table
from coldplate_server.text.reasoning import ThinkingMarks
from coldplate_server.text.special import SpecialText, SpecialToken, free_noncharacters
from coldplate_server.text.template import ChatTemplate, TemplateRefusedError

__all__ = ["ModelFilesError", "Tokenizer"]

_THINK, _END_THINK = "<think>", "</think>"
# How Qwen3 is stopped: the sentence that its documentation and technical report (arXiv:2505.09388) put in.
_QWEN3_CLOSING = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
)

_TAIL_TOKENS = 8  # what a template may write behind the mark


class Tokenizer:
    """Safe to use from several threads. Encoding takes time in proportion to the text: call it off the event loop."""

    def __init__(self, files: ModelFiles) -> None:
        self.vocabulary_size = files.vocabulary_size
        self.end_of_text_ids = files.end_of_text_ids
        self.max_context_tokens = files.max_context_tokens
        self.architecture = files.architecture
        self.revision = files.revision
        self._backend = _backend(files.tokenizer_json)
        self._plain = _without_special(self._backend, within_text=False)
        self._plain_within = _without_special(self._backend, within_text=True)
        added = self._backend.get_added_tokens_decoder()
        special = [
            SpecialToken(index, token.content, token.lstrip, token.rstrip, token.single_word)
            for index, token in added.items()
            if token.special
        ]
        self._special = SpecialText(special)
        self._special_ids = frozenset(token.id for token in special)
        # Special tokens matched after normalising may be written in several ways, so text is not searched for them.
        normalized = self._backend.normalizer is not None
        self._always_plain = normalized and any(token.special and token.normalized for token in added.values())
        size = max(self.vocabulary_size, self._backend.get_vocab_size(), *(index + 1 for index in added), 1)
        self._table = piece_table(self._backend, size)
        self._longest_token_bytes = self._longest(size)
        self.thinking_marks = self._thinking_marks()
        try:
            self._template = ChatTemplate(files.chat_template, files.token_variables) if files.chat_template else None
        except ValueError as error:
            raise ModelFilesError(f"{files.chat_template_file}: {error}") from error

    @classmethod
    def load(cls, model_dir: Path) -> "Tokenizer":
        """Read tokenizer.json, config.json and what lies beside them. Raises ModelFilesError."""
        files = ModelFiles.read(model_dir)
        try:
            return cls(files)
        except ModelFilesError:
            raise
        except Exception as error:  # the native library raises bare Exception for whatever it cannot parse
            raise ModelFilesError(f"{model_dir / 'tokenizer.json'}: not a usable tokenizer: {error}") from error

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of plain text, in which special-token text is text; the model's start token and the like are added."""
        plain = self._always_plain or self._special.occurs_in(text)
        return self._ids(self._plain if plain else self._backend, text, add_special_tokens)

    @property
    def can_switch_thinking(self) -> bool:
        return self.thinking_marks is not None and self._template is not None and self._template.has_thinking_switch

    def opens_thinking(self, prompt_ids: abc.Sequence[int], continued: str = "") -> bool:
        """Whether a prompt ends with the mark that starts thinking, and white space at most behind it.

        ``continued`` is the final message that the prompt leaves open, which may break off inside its thinking.
        """
        if self.thinking_marks is None:
            return False
        if continued.rfind(_THINK) > continued.rfind(_END_THINK):
            return True
        tail = list(prompt_ids[-_TAIL_TOKENS:])
        if self.thinking_marks.start_id not in tail:
            return False
        behind = tail[len(tail) - tail[::-1].index(self.thinking_marks.start_id) :]
        return not self.decode(behind, special_tokens=True).strip()

    def render(self, conversation: Conversation, *, field: str = "request.conversation") -> str:
        """The text the chat template makes of ``conversation``; raises as ``encode_conversation`` does."""
        text, breaker = self._render(conversation, field, None)
        return text.replace(breaker, "")

    def encode_conversation(
        self, conversation: Conversation, *, field: str = "request.conversation", thinking: bool | None = None
    ) -> list[int]:
        """Ids of the laid-out conversation, in which only the template makes special tokens.

        No start token is added: the template writes it where the model wants one. ``thinking`` sets the template's
        switch. Raises NoChatTemplate, and InvalidRequest at ``field`` with the template's reason when it refuses.
        """
        text, breaker = self._render(conversation, field, thinking)
        if breaker not in text and not self._always_plain:
            return self._ids(self._backend, text, False)
        ids: list[int] = []
        for position, piece in enumerate(self._special.split(text, breaker)):
            if isinstance(piece, SpecialToken):
                ids.append(piece.id)
            else:
                ids += self._ids(self._plain_within if position else self._plain, piece, False)
        return ids

    def decode(self, ids: abc.Sequence[int], *, special_tokens: bool = False) -> str:
        """Text of ``ids``; ids that are no token add nothing."""
        detokenizer = self.detokenizer(special_tokens=special_tokens)
        return detokenizer.push(ids) + detokenizer.finish()

    def piece(self, index: int) -> str:
        """The token as its vocabulary writes it, or "" for an id that is none."""
        return self._backend.id_to_token(index) or ""

    def detokenizer(self, *, special_tokens: bool = False) -> Detokenizer:
        """A new one for one answer; special tokens add nothing unless asked for."""
        if self._table is not None:
            return TableDetokenizer(self._table if special_tokens else self._table.without(self._special_ids))
        return WindowDetokenizer(lambda ids: self._backend.decode(list(ids), skip_special_tokens=not special_tokens))

    def max_prompt_bytes(self, context: int) -> int:
        """Bytes of UTF-8 above which no text fits ``context`` tokens: every token at its longest.

        Normalising may shorten a text (runs of white space, say), so the bound is doubled where there is any.
        """
        factor = 1 if self._backend.normalizer is None else 2
        return factor * context * self._longest_token_bytes

    def _thinking_marks(self) -> ThinkingMarks | None:
        """Where both marks are single tokens."""
        added = {token.content for token in self._backend.get_added_tokens_decoder().values()}
        start, end = self._backend.token_to_id(_THINK), self._backend.token_to_id(_END_THINK)
        if start is None or end is None or not {_THINK, _END_THINK} <= added:
            return None
        closing = _QWEN3_CLOSING if self.architecture.startswith("Qwen3") else ""
        before, behind = self._ids(self._backend, closing, False), self._ids(self._backend, "\n\n", False)
        return ThinkingMarks(start, end, (*before, end, *behind))

    def _render(self, conversation: Conversation, field: str, thinking: bool | None) -> tuple[str, str]:
        """The laid-out text with breakers in it, and the breaker."""
        if self._template is None:
            raise NoChatTemplate("the model has no chat template; send text or token_ids instead of a conversation")
        messages = conversation.messages
        reserved = free_noncharacters([part for message in messages for part in (message.role, message.text)])
        if reserved is None:
            raise InvalidRequest([Violation(field, "holds nearly all of the noncharacters U+FDD0 to U+FDEF")])
        breaker, end_mark = reserved
        turns = [
            ChatMessage(self._special.break_up(message.role, breaker), self._special.break_up(message.text, breaker))
            for message in messages
        ]
        continued = conversation.continue_final_message and bool(turns)
        if continued:
            turns[-1] = ChatMessage(turns[-1].role, turns[-1].text + end_mark)
        try:
            text = self._template.render(turns, add_generation_prompt=not continued, thinking=thinking)
        except TemplateRefusedError as refusal:
            reason = str(refusal).replace(breaker, "").replace(end_mark, "")
            raise InvalidRequest([Violation(field, reason)]) from refusal
        if continued:
            text, found, _ = text.rpartition(end_mark)
            if not found:
                raise InvalidRequest(
                    [
                        Violation(
                            field,
                            "the model's chat template drops or rewrites the last message: it cannot be continued",
                        )
                    ]
                )
            text = text.replace(end_mark, "")
        return text, breaker

    @staticmethod
    def _ids(backend: Backend, text: str, add_special_tokens: bool) -> list[int]:
        # Of the library's ways to encode, the batch ones alone let other threads run meanwhile.
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def _longest(self, size: int) -> int:
        if self._table is None:
            return max((len(self.piece(index).encode()) for index in range(size)), default=1)
        return max(
            (len(entry.encode()) if isinstance(entry, str) else len(entry) for entry in self._table.entries), default=1
        )


def _backend(tokenizer_json: str) -> Backend:
    backend = Backend.from_str(tokenizer_json)
    backend.no_truncation()
    backend.no_padding()
    return backend


def _without_special(backend: Backend, *, within_text: bool) -> Backend:
    """The same tokenizer, vocabulary shared, to which special-token text is text.

    ``within_text`` is for text after the start: some put a space mark in front of the very first text only.
    """
    plain = Backend(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = _never_first(backend.pre_tokenizer) if within_text else backend.pre_tokenizer
    if backend.post_processor is not None:
        plain.post_processor = backend.post_processor
    # In the order of their ids, so that each gets its own again.
    plain.add_tokens([token for _, token in sorted(backend.get_added_tokens_decoder().items())])
    plain.encode_special_tokens = True
    return plain


def _never_first(pre_tokenizer: PreTokenizer) -> PreTokenizer:
    document = json.loads(pre_tokenizer.__getstate__())
    steps = document.get("pretokenizers", [document])
    if not any(step.get("prepend_scheme") == "first" for step in steps):
        return pre_tokenizer
    for step in steps:
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
    changed = Sequence([])
    changed.__setstate__(json.dumps({"type": "Sequence", "pretokenizers": steps}).encode())
    return changed
