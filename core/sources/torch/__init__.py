"""Files of torch.save: their zips and pickles, read without torch, and the files of ranks joined."""
