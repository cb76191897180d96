# Completion of edl-ckpt in bash. A package puts this file where bash-completion finds it; by hand:
#   edl-ckpt completion bash > ~/.local/share/bash-completion/completions/edl-ckpt
# or, without bash-completion, in ~/.bashrc:
#   source <(edl-ckpt completion bash)
_edl_ckpt() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(_EDL_CKPT_COMPLETE=bash COMP_LINE=$COMP_LINE COMP_POINT=$COMP_POINT COMP_WORDBREAKS=$COMP_WORDBREAKS \
        "${1/#\~/$HOME}" </dev/null 2>/dev/null)
    compopt -o nospace -o nosort 2>/dev/null # a space stands in what needs one; the order is ours
}
complete -F _edl_ckpt edl-ckpt
