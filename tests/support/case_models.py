"""The models behind most case tests, so that one server can hold them all."""

from functools import cache

from support import checkpoints, tokenizers
from support.checkpoints import Checkpoint, Script, ids
from support.tokenizers import (
    BYTES_VOCABULARY,
    END_B_ID,
    END_OF_TEXT_ID,
    END_THINK,
    END_THINK_ID,
    IM_END_ID,
    THINK,
    THINK_ID,
    THINKING,
    TokenizerSpec,
)

BYTE_80 = ids(b"\x80")
ALPHABET = ids("abcdefghijklmnopqrstuvwxyz")
META_WORDS = TokenizerSpec("meta")


@cache
def book() -> Checkpoint:
    """Exactly known answers behind prompts of known lengths. No start token, no chat template, two end-of-text ids."""
    return checkpoints.script_book(
        {
            "alive": ids("fine"),
            "many languages": ids("ďábel 中文 😀🤣"),
            "half a character": ids(b"\xe4\xb8", " ok", END_OF_TEXT_ID),
            "two characters": ids("中中"),
            "letters": ids("ABCDEFGHIJKLM"),
            "italian": ids("UNO DUE TRE", END_OF_TEXT_ID),
            "numbers": ids("one, two, three, four, five, six"),
            "special inside": ids("a", IM_END_ID, "b", END_OF_TEXT_ID),
            "second end": ids("hi", END_B_ID, "more"),
            "after two": ids("first answer"),
            "after two hundred": ids("second answer of some length"),
        },
        context=1024,
        first_prompt=40,
        prompt_tokens={"alive": 5, "after two": 12, "after two hundred": 600},
        eos=(END_OF_TEXT_ID, END_B_ID),
    )


def page(name: str) -> Script:
    """One answer of the book."""
    return book().scripts[name]


@cache
def undecodable() -> Checkpoint:
    """Says byte 0x80, which is no character, for ever."""
    return checkpoints.cycle(BYTE_80, context=1600)


@cache
def chatty() -> Checkpoint:
    """A random Llama of context 256 with a chat template."""
    return checkpoints.random_llama(seed=1, tokenizer=TokenizerSpec(chat_template=tokenizers.CHATML))


@cache
def strict() -> Checkpoint:
    """A random GPT-2 whose template demands alternating turns."""
    return checkpoints.random_gpt2(seed=2, tokenizer=TokenizerSpec(chat_template=tokenizers.ALTERNATING))


@cache
def starting() -> Checkpoint:
    """A random Llama whose tokenizer adds the start token and whose template begins with it."""
    spec = TokenizerSpec(chat_template=tokenizers.START_TOKEN_FIRST, adds_start=True)
    return checkpoints.random_llama(seed=3, tokenizer=spec)


@cache
def spaced() -> Checkpoint:
    """Says "Dear Name, I hope" in word pieces with a space mark, behind a prompt of six tokens."""
    tokenizer = tokenizers.build(META_WORDS)
    answer = tokenizer.encode("Dear Name, I hope").ids
    end = tokenizer.encode(tokenizers.END_OF_TEXT).ids[-1]
    return checkpoints.script_book(
        {"text": [*answer, end], "alive": tokenizer.encode("hello").ids},
        prompt_tokens={"text": 6, "alive": 1},
        tokenizer=META_WORDS,
        eos=(end,),
        config_eos=end,
        vocabulary=tokenizer.get_vocab_size(),
    )


@cache
def thinker() -> Checkpoint:
    """Thinks before it answers, where its script says so; its template has Qwen3's switch."""
    return checkpoints.script_book(
        {
            "alive": ids("fine"),
            "thinks": ids(THINK_ID, "\nhm, h\u00fcm \n", END_THINK_ID, "\n\nThe answer.", END_OF_TEXT_ID),
            "opened": ids(" aha\n", END_THINK_ID, "\n\nYes.", END_OF_TEXT_ID),
            "never ends": ids(THINK_ID, "and so on and so on and so on and so on "),
            "mark later": ids("a", THINK_ID, "b", END_THINK_ID, "c", END_OF_TEXT_ID),
            "answers": ids("At once.", END_OF_TEXT_ID),
        },
        context=512,
        first_prompt=60,
        prompt_tokens={"alive": 5},
        tokenizer=TokenizerSpec(chat_template=THINKING, extra=(THINK, END_THINK)),
        vocabulary=BYTES_VOCABULARY + 2,
    )


@cache
def alphabet() -> Checkpoint:
    """Says the alphabet for ever, in context 256."""
    return checkpoints.cycle(ALPHABET, context=256)


def alphabet_answer(prompt_tokens: int, count: int) -> str:
    """What ``alphabet`` says behind a prompt of ``prompt_tokens`` tokens."""
    return "".join(chr(ALPHABET[(prompt_tokens - 1 + k) % len(ALPHABET)]) for k in range(count))
