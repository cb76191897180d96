"""How a version becomes visible: on a disk by a rename, on object storage by its last object."""
