# Completion of edl-ckpt in fish. A package puts this file where fish finds it; by hand:
#   edl-ckpt completion fish > ~/.config/fish/completions/edl-ckpt.fish
function __edl_ckpt_complete
    set -l words (commandline -opc)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -l last (commandline -ct | string unescape)
    _EDL_CKPT_COMPLETE=fish $program $words[2..-1] "$last" </dev/null 2>/dev/null
end
complete --command edl-ckpt --no-files --keep-order --arguments '(__edl_ckpt_complete)'
