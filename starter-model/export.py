"""Write a trained model as one GGUF file that llama.cpp loads without a converter."""

import json
from pathlib import Path

import gguf
import numpy as np
import product
from model import CONTEXT, EPSILON, ROPE_BASE, Llama
from tokenizers import Tokenizer
from vocabulary import CHAT_TEMPLATE, SPECIALS

DESCRIPTION = (
    "A very small demo model that comes with Llama Appliance: it answers simple questions about the program. "
    "Weights and training text were made by the project."
)


def write(model: Llama, tokenizer: Tokenizer, path: Path) -> None:
    """Q8_0 matrices, F32 norms; replaces `path` in one step so that a reader never sees half a file."""
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    _metadata(writer, model)
    _vocabulary(writer, tokenizer)
    for name, weight in model.state_dict().items():
        values = weight.numpy().astype(np.float32)
        if values.ndim == 2:
            q8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, q8), raw_dtype=q8)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)


def _metadata(writer: gguf.GGUFWriter, model: Llama) -> None:
    shape = model.shape
    writer.add_name("Llama Appliance Starter")
    writer.add_author("The Llama Appliance developers")
    writer.add_description(DESCRIPTION)
    writer.add_license(product.LICENSE)
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_vocab_size(shape.vocabulary)


def _vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    size = tokenizer.get_vocab_size()
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokenizer.id_to_token(i) for i in range(size)])
    writer.add_token_types([control if i < len(SPECIALS) else normal for i in range(size)])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
