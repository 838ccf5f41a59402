"""Native operators beside their plain references, and the augmentation that runs on the device."""
