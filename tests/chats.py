"""Small tokenizers with chat templates in the forms that families of models have."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
    {%- if message.tool_calls is defined %}{{ message.tool_calls | tojson }}{% endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
THINKING = """\
{%- for message in messages %}
    {%- set said = message.content %}
    {%- if message.role == 'assistant' and not loop.last %}
        {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
    {%- elif message.role == 'assistant' and '<think>' not in said %}
        {%- set said = '<think>\\n\\n</think>\\n\\n' + said %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + said + '<|im_end|>\\n' }}
{%- endfor %}
"""
HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
"""
INST = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{% set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- set said = system + '\\n\\n' + message['content'] if loop.first and system is defined
            else message['content'] %}
        {{- '[INST] ' + said + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""
PLAIN = """\
{% for message in messages %}
{% if message.role == 'user' %}
USER: {{ message.content }}
{% elif message.role == 'assistant' %}
ASSISTANT: {{ message.content }}
{% endif %}
{% endfor %}
"""
MARKED = """\
{% for message in messages %}
{{- '<|' + message.role + '|>' -}}
{% if message.role == 'assistant' %}
{%- generation %}{{ message.content + eos_token }}{% endgeneration %}
{%- else %}{{ message.content + eos_token }}{% endif %}
{%- endfor %}
"""
TEMPLATES = {
    "chatml": CHATML,
    "thinking": THINKING,
    "headers": HEADERS,
    "inst": INST,
    "plain": PLAIN,
    "marked": MARKED,
}
SPECIAL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
)


@cache
def small_tokenizer() -> Tokenizer:
    """Return a BPE over bytes, which knows the special tokens of all templates."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = "user assistant system You are helpful. What is the answer? It is four.\n\nThank you.\n"
    tokenizer.train_from_iterator([words] * 4, trainer)
    return tokenizer


def write_chat_folder(folder: Path, template: str | None, **config: Any) -> Path:
    """Write what `save_pretrained` writes, as far as it decides tokens."""
    folder.mkdir(parents=True)
    small_tokenizer().save(str(folder / "tokenizer.json"))
    told = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template}
    found = {name: value for name, value in {**told, **config}.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(found))
    return folder
