"""Families of vision-language models: how many tokens a picture becomes, and which pixels.

What a processor of transformers does with a picture, in numpy and Pillow alone: nothing of torch
or transformers is imported, and nothing is asked of a network.

* `family.py`: what all families share.
* `patch_families.py`: those that cut a picture of its own shape into patches: Qwen and Kimi.
* `clip_patches.py`: what Qwen's families make of videos.
* `fixed_families.py`: whose pictures all have one shape: LLaVA's, and what a job describes.
* `processor_folder.py`: which family the folder of a processor is, and with which settings.
* `video_folder.py`: what such a folder says of videos.
* `family_settings.py`: their settings, checked.
* `rope_positions.py`: positions in three dimensions.
"""
