"""S3: the client, the store and its reader, and multipart uploads."""
