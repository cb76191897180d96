#!/bin/sh
# Wait for the best version of a training job, check it, export it for serving, and copy it to where it is kept.
# Any step that fails ends the pipeline with its exit code. A repeated run copies nothing that is there.
#
#   RUN      checkpoint_dir of the job        METRIC   the metric that decides, such as auc
#   SERVING  directory of the exported model  BACKUP   location of the copy, such as s3://bucket/promoted
#   TIMEOUT  how long to wait, by default 6h  MINIMUM  the first version to consider, by default 1
set -eu
exec 3>&1 >&2 # stdout gets the reference of the promoted version, and nothing else

ref=$(edl-ckpt wait "$RUN" --best "$METRIC" --version-ge "${MINIMUM:-1}" --timeout "${TIMEOUT:-6h}" --quiet)
echo "promoting $ref" >&2
edl-ckpt verify "$ref" --deep --quiet --junit "${JUNIT:-promote-junit.xml}"
mkdir -p "$SERVING"
edl-ckpt export "$ref" "$SERVING/model-${ref##*@}.safetensors" --force --quiet
edl-ckpt copy "$ref" "$BACKUP" --quiet
edl-ckpt tag add "$ref" promoted --quiet
echo "$ref" >&3
