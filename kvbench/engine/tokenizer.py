"""Text to tokens and back, by what a GGUF file says of its tokenizer.

Byte-pair encoding over bytes, as GPT-2's, with the library `tokenizers`. How a text is cut into
words before is named in the file and known here: another cut gives other tokens.
"""

import codecs
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kvbench.engine.gguf import Metadata
from kvbench.errors import InputError

if TYPE_CHECKING:
    import tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CUTS = {
    # llama.cpp's for a file that names none.
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "llama-bpe": (_LLAMA3,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
}
"""What is cut out of a text, one after the other, by the name of a way of cutting."""
_WHOLE_WORDS = {"llama-bpe"}
"""Ways whose vocabulary has words that its merges don't lead to."""
_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens that stand for themselves: not to be printed, and to be printed."""


class Speaks(Protocol):
    """Text to tokens and back."""

    stops: frozenset[int]
    """Tokens that end a text."""

    def encode(self, text: str, *, chat: bool) -> list[int]:
        """The tokens of a prompt.

        Args:
            text: The user's.
            chat: Whether a chat template goes around it, if there is one.
        """
        ...

    def stream(self) -> "Stream":
        """What a model says, token by token."""
        ...


class Stream(Protocol):
    """Text from tokens that come one by one."""

    def add(self, token: int) -> str:
        """What can be printed now."""
        ...

    def end(self) -> str:
        """What is left."""
        ...


class Tokenizer:
    """The tokenizer of a GGUF file.

    Raises:
        InputError: The file's is of another kind, or a part of it is missing or doesn't fit.
    """

    def __init__(self, metadata: Metadata) -> None:
        kind = metadata.get("tokenizer.ggml.model", str)
        if kind != "gpt2":
            raise metadata.refusal(
                f"tokenizer.ggml.model is {kind!r}; expected 'gpt2', byte-pair encoding over bytes"
            )
        cut = metadata.get("tokenizer.ggml.pre", str, "default")
        if cut not in _CUTS:
            raise metadata.refusal(
                f"tokenizer.ggml.pre is {cut!r}; expected one of: {', '.join(sorted(_CUTS))}"
            )
        self._metadata = metadata
        self._texts = metadata.items("tokenizer.ggml.tokens", str)
        types = metadata.items("tokenizer.ggml.token_type", int)
        if len(types) != len(self._texts):
            raise metadata.refusal(
                f"tokenizer.ggml.token_type has {len(types)} entries; "
                f"expected {len(self._texts)}, one for each token"
            )
        letters = {letter: byte for byte, letter in enumerate(_letters())}
        own = {_CONTROL, _USER_DEFINED}
        self._control = frozenset(t for t, type_ in enumerate(types) if type_ == _CONTROL)
        self._bytes = [
            text.encode() if type_ in own else _bytes_of(text, letters)
            for text, type_ in zip(self._texts, types, strict=True)
        ]
        self._library = self._build(cut, types)
        self._bos = self._special("bos")
        starts = metadata.get("tokenizer.ggml.add_bos_token", bool, cut in _WHOLE_WORDS)
        self._head = [self._bos] if starts and self._bos is not None else []
        ends = (self._special(name) for name in ("eos", "eot", "eom"))
        self.stops = frozenset(token for token in ends if token is not None)

    @property
    def size(self) -> int:
        """Tokens that there are."""
        return len(self._texts)

    def encode(self, text: str, *, chat: bool) -> list[int]:
        """As `Speaks`. Marks as <|im_end|> in a text are the tokens of that name.

        Raises:
            InputError: The template fails, or a part of the text has no token.
        """
        _utf8(text)  # as the user wrote it, which a template begins with words of its own
        head: list[int] = []
        if chat and "tokenizer.chat_template" in self._metadata:
            text = self._chat(text)  # has the first token where it wants one
        else:
            head = self._head
        wanted = _utf8(text)
        tokens: list[int] = self._library.encode(text, add_special_tokens=False).ids
        # The library leaves out what has no token.
        if b"".join(self._bytes[token] for token in tokens) != wanted:
            raise self._metadata.refusal(f"its tokens can't spell the prompt {text!r:.40}")
        return [*head, *tokens]

    def stream(self) -> "TextStream":
        """As `Speaks`; control tokens are not printed."""
        return TextStream(lambda token: b"" if token in self._control else self._bytes[token])

    def _build(self, cut: str, types: list[int]) -> "tokenizers.Tokenizer":
        try:
            import tokenizers  # noqa: PLC0415 - an optional package
        except ModuleNotFoundError as error:
            raise self._metadata.refusal(
                "its text takes the package tokenizers, which is not here; expected it to be "
                "installed, as by pip install '.[engine]' in a clone"
            ) from error
        merges = [tuple(m.split(" ")) for m in self._metadata.items("tokenizer.ggml.merges", str)]
        vocabulary = {text: token for token, text in enumerate(self._texts)}
        try:
            model = tokenizers.models.BPE(
                vocab=vocabulary, merges=merges, ignore_merges=cut in _WHOLE_WORDS
            )
        except Exception as error:  # the library raises just that
            raise self._metadata.refusal(
                f"tokenizer.ggml.merges doesn't fit its tokens ({error})"
            ) from error
        library = tokenizers.Tokenizer(model)
        words = [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
            for pattern in _CUTS[cut]
        ]
        as_letters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*words, as_letters])
        for kind in (_CONTROL, _USER_DEFINED):
            added = [
                tokenizers.AddedToken(text, normalized=False, special=kind == _CONTROL)
                for text, type_ in zip(self._texts, types, strict=True)
                if type_ == kind
            ]
            library.add_special_tokens(added)
        return library

    def _special(self, name: str) -> int | None:
        """The token of a role, as "eos"; None if the file names none."""
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in self._metadata:
            return None
        token = self._metadata.get(key, int)
        if not 0 <= token < self.size:
            raise self._metadata.refusal(f"{key} is {token}; expected 0 to {self.size - 1}")
        return token

    def _chat(self, text: str) -> str:
        """A user's first message in a chat, up to where the answer begins.

        Templates come with the file: they run in a sandbox.
        """
        import jinja2  # noqa: PLC0415 - slow, and most commands don't need it
        import jinja2.sandbox  # noqa: PLC0415

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )

        def raise_exception(message: str) -> None:
            raise jinja2.TemplateError(message)

        environment.globals["raise_exception"] = raise_exception
        eos = self._special("eos")
        try:
            return environment.from_string(
                self._metadata.get("tokenizer.chat_template", str)
            ).render(
                messages=[{"role": "user", "content": text}],
                add_generation_prompt=True,
                bos_token="" if self._bos is None else self._texts[self._bos],
                eos_token="" if eos is None else self._texts[eos],
            )
        except (jinja2.TemplateError, ArithmeticError, TypeError, LookupError, ValueError) as error:
            raise self._metadata.refusal(f"its chat template fails ({error})") from error


class TextStream:
    """Text from the bytes of tokens, held back until a character is whole."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """As `Stream`."""
        return self._decoder.decode(self._bytes_of(token))

    def end(self) -> str:
        """As `Stream`: a character that was not finished is U+FFFD."""
        return self._decoder.decode(b"", final=True)


class Numbers:
    """The tokens of a model of random weights, which has no words: what it says is numbers.

    The tokens of a prompt are its bytes.
    """

    stops: frozenset[int] = frozenset()

    def encode(self, text: str, *, chat: bool) -> list[int]:
        """As `Speaks`."""
        del chat
        return list(text.encode("utf-8", "surrogateescape"))

    def stream(self) -> "NumberStream":
        """As `Speaks`."""
        return NumberStream()


class NumberStream:
    """Tokens as numbers."""

    def __init__(self) -> None:
        self._between = ""

    def add(self, token: int) -> str:
        """As `Stream`."""
        text, self._between = f"{self._between}{token}", " "
        return text

    def end(self) -> str:
        """As `Stream`: nothing."""
        return ""


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"prompt {text!r:.40} is no UTF-8; expected text that is") from error


def _letters() -> list[str]:
    """GPT-2's letter for each byte: its own if that can be printed, else one from U+0100 on."""
    letters, more = [], 0x100
    for byte in range(256):
        printable = 0x21 <= byte <= 0x7E or (byte >= 0xA1 and byte != 0xAD)  # noqa: PLR2004
        letters.append(chr(byte if printable else more))
        more += not printable
    return letters


def _bytes_of(text: str, letters: dict[str, int]) -> bytes:
    """The bytes that a token's letters stand for; a letter of none stands for itself."""
    found: list[Any] = [bytes([letters[x]]) if x in letters else x.encode() for x in text]
    return b"".join(found)
