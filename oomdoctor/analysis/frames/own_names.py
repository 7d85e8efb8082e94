"""Phases by the names that people give to functions in their scripts.

The patterns are whole names of functions. Words that also occur in names of other things (`val` in
`get_val_loader`, `sample` in `sample_batch`) count only where the rest of the name allows it.
"""

from __future__ import annotations

# Libraries in which `eval` or `validate` is about something else.
OTHER_USE = (
    r"^(?!.*(?:/torch/|pandas/|pydantic|omegaconf|hydra/|sympy|numexpr|jsonschema|huggingface_hub/"
    r"|/click/|/typer/)).*"
)

_NO_PASS = (  # names about data, settings and training, although a word of evaluation is in them
    r"(?!_*(?:get|make|build|load|create|prepare|init|setup|parse|read|is|has|should|set)_"
    r"\w*(?:data|loader|set|sampler|batch|config|args|metric|transform|interval|step|strategy|freq))"
    r"(?!\w*(?:train|fit_|_fit\b|pretrain|finetune))"
    r"(?!_*validat(?:e|ion)_\w*(?:arg|config|input|param|kwarg|schema|env|file|path|request"
    r"|type|shape|format|version|option|setting|field|model_class|device|url|token|key|choice)s?)"
)
EVALUATION = (
    rf"{_NO_PASS}(?:\w*_)?(?:eval(?:uat(?:e|ion|or|ing))?|valid|val|validat(?:e|ion|ing)"
    r"|ppl|perplexity|estimate_loss)(?:_\w+)?"
    r"|_?(?:estimate_loss(?:es)?|estimate_\w*loss|test|testing|calc_loss_loader\w*)"
    r"|_?test_(?:step|epoch|loop|model|one_epoch|on_\w+|set|loss|network|time\w*)"
    r"|(?:single|multi)_gpu_test|inference_on_dataset|collect_results\w*"
)
GENERATION = (
    r"_?(?:\w+_)?generat(?:e|ion)_(?:text|repl(?:y|ies)|tokens?|images?|videos?|audio|captions?"
    r"|sequences?|summar(?:y|ies)|translations?|and_\w+|one_\w+|until_\w+|rollouts?|trajector\w+|with_\w+"
    r"|from_\w+|simple|greedy|beam\w*|stream|impl|loop|speech|wavs?|next\w*|chat|samples?|responses?"
    r"|completions?|answers?|outputs?)(?:_\w+)?"
    r"|_?(?:\w+_)?(?:greedy|beam|autoregressive|ar|speculative|nucleus|incremental|sampling)"
    r"_\w*(?:decod(?:e|ing)|search|sampl(?:e|ing)|generat(?:e|ion))\w*|(?:\w+_)?beam_search\w*"
    r"|_?decode_(?:one_token|n_tokens|step|sequences?|next\w*|greedy|beam\w*|loop|tokens?)"
    r"|_?(?:p|ddim|ddpm|edm|plms|dpm|dpmpp|euler|heun|top_?k|top_?p|multinomial)_sampl(?:e|ing)"
    r"\w*|_?sample_(?!from_\w*(?:buffer|memory|dataset|replay))(?:text|next\w*|tokens?"
    r"|images?|loop|sequences?|from_\w+|one\w*|euler\w*|dpm\w*|heun\w*|ddim\w*|and_\w+|outputs?|videos?"
    r"|audio|rollouts?|completions?|responses?|model)"
    r"|_?(?:predict_next\w*|translate|translate_(?:sentence|text|batch)|summari[sz]e"
    r"|(?:\w+_)?generate|process_images(?:_inner)?|decode_(?:first_stage|latents?)|vae_decode"
    r"|common_ksampler|(?:outer|inner)_sample|launch_sampling|ddim_sampling|plms_sampling"
    r"|(?:\w+_)?rollouts?|(?:text|chat)_completion|(?:txt|img)2img|text_to_(?:image|speech|video)"
    r"|synthesi[sz]e(?:_\w+)?|transcribe(?:_\w+)?)"
)
# Also names of a model's own methods, which a forward pass calls.
WEAK_GENERATION = r"(?:decode|sample|complete|infer_next)"
NOT_GENERATING = (
    r"^(?!.*(?:buffer|replay|memory|dataset|data/.*sampler|distributions|tokeniz"
    r"|stable_baselines3)).*"
)
SAVING = (
    r"_?(?:\w+_)?(?:checkpoint|ckpt|model)_save|consolidat\w+"
    r"|_?(?:write|dump|store|export)_(?:\w+_)?(?:checkpoint|ckpt|model|weights|hf|onnx|pretrained|gguf"
    r"|safetensors)\w*|_?gather_(?:full_)?(?:model_|all_)?(?:param(?:eter)?s?|weights?|model|state)\w*"
    r"|\w*_state_maybe_zero_3|maybe_zero_3|merge_and_(?:unload|save\w*|push\w*|export)"
    r"|(?!\w*(?:load|set_|broadcast|distribute|convert|remap|rename|fix|process|read|split|map_|check"
    r"|update))\w*state_dict\w*"
)
DATA = (
    r"_?load_(?:data\w*|datasets?\w*|batch\w*|images?|audio|video|corpus|jsonl?|csv|parquet"
    r"|examples?|samples?)|_?(?:get|next|fetch|prepare|make|pad)_(?:mini_?)?batch(?:es)?"
    r"|(?:\w+_)?collat(?:e|or)\w*|(?:pre)?tokeni[sz]e(?:_\w+)?|(?:move_|recursive_|send_|batch_)?to_"
    r"(?:device|cuda|gpu)|move_to(?:_device|_cuda|_gpu)?|__getitems?__|preprocess(?:_\w+)?"
)
# A training around a pass: the evaluation or generation around that training is not the phase.
TRAINING = (
    r"_?(?:\w+_)?(?:train|fit|finetune|pretrain)(?:_\w+)?|_?training_(?:step|loop|epoch)"
    r"|_?inner_training_loop|\w+_train_step|train\w*_loop"
)
# A module that computes a loss, and a line that calls one.
LOSS_FILE = (
    r"(?:^|/)(?:\w*_)?(?:loss(?:es)?|criterion)(?:_\w+)?\.py$|/(?:losses|criterions?)/\w+\.py$"
)
LOSS_CALL = (
    r"(?<![\w.])(?:self\.)?(?!(?:compute|calc|calculate|get|estimate|eval|train|training|forward)_)"
    r"(?:criterion\w*|loss_?f(?:n|unc|unction|ct)\w*|\w+_loss|loss)\((?!.*\b(?:model|net)\b)"
)
