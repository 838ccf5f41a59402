"""Records, frame plans, readers and the clip dataset: everything before the device, without paddle."""
