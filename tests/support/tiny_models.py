"""Tiny models of many architectures with weights that no random generator decides, and a real tokenizer.

Every weight element is a fixed function of its place and of a hash of the parameter's name, so that a model is
the same on every machine and with every version of torch. Scales are chosen so that the logits have a standard
deviation of about one: losses then depend on the input and are not log(vocabulary) whatever the weights are.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    AlbertConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    BloomConfig,
    Cohere2Config,
    CohereConfig,
    DistilBertConfig,
    ElectraConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MptConfig,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    StableLmConfig,
    Starcoder2Config,
    XLMRobertaConfig,
)

from zoexport.models.older_readers import write_older_keys

VOCAB_SIZE = 320
"""Larger than the tokenizer's 300 entries, as real models pad their vocabulary."""
TOKENIZER_SIZE = 300
HIDDEN = 64
SLIDING_WINDOW = 8

SENTENCES = (
    "The film is a warm and funny story about a family by the sea. It was great",
    "A dull, slow and empty picture that never finds its way. It was terrible",
    "One of the best movies of the year, with a cast that shines in every scene.",
    "The plot makes no sense and the jokes are not funny at all.",
    "Two friends travel through the mountains and learn what matters to them.",
    "What a waste of time, money and talent; nobody should watch this.",
    "System, user and assistant take turns: question, answer, question, answer.",
    "Numbers such as 0 1 2 3 4 5 6 7 8 9 and words with accents like café or naïve.",
)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA_LIKE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "vocab_size": VOCAB_SIZE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    # Outside the tokenizer's ids for none of them: id 0 pads, 1 begins, 2 ends.
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_GEMMA: dict[str, Any] = {
    **LLAMA_LIKE,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "sliding_window": SLIDING_WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "tie_word_embeddings": True,
}
_IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


_CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**LLAMA_LIKE),
    "llama_tied": lambda: LlamaConfig(**{**LLAMA_LIKE, "tie_word_embeddings": True}),
    "qwen2": lambda: Qwen2Config(**{**LLAMA_LIKE, "tie_word_embeddings": True}),
    "qwen3": lambda: Qwen3Config(**LLAMA_LIKE, head_dim=16),
    "gemma3": lambda: Gemma3TextConfig(**_GEMMA, query_pre_attn_scalar=16),
    "gemma2": lambda: Gemma2Config(
        **{**_GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        query_pre_attn_scalar=16,
    ),
    "mistral": lambda: MistralConfig(**LLAMA_LIKE, head_dim=16, sliding_window=SLIDING_WINDOW),
    "opt": lambda: OPTConfig(
        **_without(LLAMA_LIKE, "num_key_value_heads", "intermediate_size", "tie_word_embeddings"),
        ffn_dim=128,
        word_embed_proj_dim=HIDDEN,
    ),
    "phi3": lambda: Phi3Config(**LLAMA_LIKE),
    "phi": lambda: PhiConfig(**LLAMA_LIKE),
    "gpt2": lambda: GPT2Config(
        n_embd=HIDDEN, n_layer=2, n_head=4, vocab_size=VOCAB_SIZE, n_positions=128, **_IDS
    ),
    "olmo2": lambda: Olmo2Config(**LLAMA_LIKE),
    "gpt_neox": lambda: GPTNeoXConfig(**_without(LLAMA_LIKE, "num_key_value_heads")),
    "falcon": lambda: FalconConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        vocab_size=VOCAB_SIZE,
        num_attention_heads=4,
        **_IDS,
    ),
    "bloom": lambda: BloomConfig(
        hidden_size=HIDDEN, n_layer=2, vocab_size=VOCAB_SIZE, n_head=4, **_IDS
    ),
    "mpt": lambda: MptConfig(
        d_model=HIDDEN, n_layers=2, n_heads=4, vocab_size=VOCAB_SIZE, max_seq_len=128, **_IDS
    ),
    "granite": lambda: GraniteConfig(**LLAMA_LIKE),
    "cohere": lambda: CohereConfig(**{**LLAMA_LIKE, "tie_word_embeddings": True}, logit_scale=1.0),
    "cohere2": lambda: Cohere2Config(**{**_GEMMA, "tie_word_embeddings": True}, logit_scale=1.0),
    "starcoder2": lambda: Starcoder2Config(**LLAMA_LIKE),
    "stablelm": lambda: StableLmConfig(**LLAMA_LIKE),
}

_BERT_LIKE: dict[str, Any] = {
    **_without(LLAMA_LIKE, "num_key_value_heads", "pad_token_id", "bos_token_id", "eos_token_id"),
    "tie_word_embeddings": True,
}
_ENCODERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: BertConfig(**_BERT_LIKE, pad_token_id=0),
    "roberta": lambda: RobertaConfig(**_BERT_LIKE, pad_token_id=1),
    "xlm_roberta": lambda: XLMRobertaConfig(**_BERT_LIKE, pad_token_id=1),
    "electra": lambda: ElectraConfig(**_BERT_LIKE, embedding_size=32, pad_token_id=0),
    "albert": lambda: AlbertConfig(**_BERT_LIKE, embedding_size=32, pad_token_id=0),
    "distilbert": lambda: DistilBertConfig(
        dim=HIDDEN,
        n_layers=2,
        n_heads=4,
        hidden_dim=128,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=128,
        pad_token_id=0,
    ),
}

ARCHITECTURES = tuple(_CONFIGS)
"""Every causal model that :func:`tiny` takes."""
ENCODERS = tuple(_ENCODERS)
"""Every masked language model that it takes."""


def fixed(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor in [-1, 1) that depends only on ``name`` and ``shape``, spread evenly and without order.

    Weyl's sequence of the golden ratio over a 32-bit integer hash of each element's index: exact in integers, so
    the same on every machine.
    """
    count = math.prod(shape)
    bits = torch.arange(count, dtype=torch.int64) + zlib.crc32(name.encode()) * 7919
    bits = (bits * 2654435769) & 0xFFFFFFFF
    # A Weyl sequence alone repeats its pattern along rows; two rounds of xor and multiply break that.
    for multiplier in (0x7FEB352D, 0x045D9F3B):
        bits = bits ^ (bits >> 15)
        bits = (bits * multiplier) & 0xFFFFFFFF
    bits = (bits ^ (bits >> 16)) >> 8
    return (bits.to(torch.float64) / 2**23 - 1.0).reshape(shape).to(dtype)


def _fill(model: nn.Module) -> None:
    """Fixed weights of a trained model's scales: unit rows for embeddings, 1/sqrt(in) for matrices."""
    seen: set[int] = set()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            values = fixed(name, tuple(parameter.shape))
            if parameter.dim() < 2:
                if name.endswith("bias"):
                    parameter.copy_(0.1 * values)
                else:
                    # Gemma adds one to its norm weights, the others multiply: keep each near its neutral value.
                    parameter.copy_(parameter.round().clamp(0, 1) + 0.1 * values)
            else:
                # Uniform on [-1, 1) has a standard deviation of 1/sqrt(3).
                parameter.copy_(values * math.sqrt(3.0 / HIDDEN))


def tiny(name: str) -> Any:
    """A tiny language model.

    Args:
        name: one of :data:`ARCHITECTURES` or :data:`ENCODERS`.

    Returns:
        The transformers model in eval mode: fp32, eager attention, hidden size 64, 2 or 3 layers.
    """
    return from_config(tiny_config(name))


def tiny_config(name: str, **changes: Any) -> Any:
    """The configuration of :func:`tiny`, with some attributes replaced."""
    config = {**_CONFIGS, **_ENCODERS}[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    return config


def from_config(config: Any) -> Any:
    """A model of ``config`` with fixed weights whose logits have a standard deviation of about one."""
    known = {type(make()) for make in _ENCODERS.values()}
    auto = AutoModelForMaskedLM if type(config) in known else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32, attn_implementation="eager")
    _fill(model)
    model.eval()
    _normalize_logits(model)
    return model


def _normalize_logits(model: Any) -> None:
    """Scale what produces the logits so that their standard deviation is one on a fixed batch.

    A tied output head is left alone (its scale is the embedding's); there the last norm is scaled.
    """
    with torch.no_grad():
        spread = model(input_ids=fixed_tokens(2, 24)).logits.std().item()
        head = model.get_output_embeddings()
        if not model.config.tie_word_embeddings:
            head.weight.div_(spread)
            if head.bias is not None:
                head.bias.div_(spread)
            return
        norm = [module for name, module in model.named_modules() if _is_norm(name, module)][-1]
        # Gemma computes x * (1 + weight).
        offset = 1.0 if "Gemma" in type(norm).__name__ else 0.0
        norm.weight.copy_((norm.weight + offset) / spread - offset)
        if getattr(norm, "bias", None) is not None:
            norm.bias.div_(spread)


def _is_norm(name: str, module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and hasattr(module, "weight")


def fixed_tokens(rows: int, length: int) -> torch.Tensor:
    """int64 (rows, length) tokens over the whole vocabulary, the same on every machine."""
    values = fixed(f"tokens {rows}x{length}", (rows, length), torch.float64)
    return ((values + 1.0) / 2.0 * VOCAB_SIZE).to(torch.int64).clamp(0, VOCAB_SIZE - 1)


@functools.cache
def _masking_backend() -> str:
    """:func:`_backend` with the special tokens that a RoBERTa has, at its ids: <s> 0, <pad> 1, </s> 2, <mask> 3."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE,
        special_tokens=["<s>", "<pad>", "</s>", AddedToken("<mask>", lstrip=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return str(tokenizer.to_str())


def masking_tokenizer() -> Any:
    """A byte-level BPE tokenizer of 300 entries that writes <s> and </s> around a text and knows <mask>."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_masking_backend()),
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        mask_token="<mask>",
    )


@functools.cache
def _backend(*, bos: bool) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    if bos:
        from tokenizers.processors import TemplateProcessing

        tokenizer.post_processor = TemplateProcessing(
            single="<|im_start|> $A",
            pair="<|im_start|> $A <|im_start|> $B",
            special_tokens=[("<|im_start|>", 1)],
        )
    return str(tokenizer.to_str())


def tiny_tokenizer(*, bos: bool = False, chat_template: str | None = CHAT_TEMPLATE) -> Any:
    """A byte-level BPE tokenizer of 300 entries: 3 special tokens, 256 bytes, 41 merges.

    Args:
        bos: whether the tokenizer adds <|im_start|> (id 1) before a text by its own configuration.
        chat_template: its chat template; None for a tokenizer without one.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_backend(bos=bos)),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def save_tiny(
    name: str,
    folder: Path,
    *,
    tokenizer: bool = True,
    bos: bool = False,
    chat_template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Write a tiny model and its tokenizer as a Hugging Face directory.

    Returns:
        ``folder``: config.json, model.safetensors, tokenizer.json, tokenizer_config.json, chat_template.jinja.
    """
    tiny(name).save_pretrained(folder)
    write_older_keys(folder)  # which folders on the hub have
    if tokenizer and name in ENCODERS:
        masking_tokenizer().save_pretrained(folder)
    elif tokenizer:
        tiny_tokenizer(bos=bos, chat_template=chat_template).save_pretrained(folder)
    return folder
