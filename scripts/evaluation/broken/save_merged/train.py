"""QLoRA whose adapters are merged into weights of 16 bits before they are saved."""

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (256,))
        return {"input_ids": ids, "labels": ids.clone()}


bits = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", quantization_config=bits)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
args = TrainingArguments(
    "out",
    per_device_train_batch_size=1,
    gradient_checkpointing=True,
    bf16=True,
    max_steps=8,
    save_strategy="no",
    report_to=[],
)
trainer = Trainer(model, args, train_dataset=Rows())
trainer.train()
merged = trainer.model.merge_and_unload()
state = {name: tensor.float() for name, tensor in merged.state_dict().items()}
torch.save(state, "merged.pt")
