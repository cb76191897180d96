"""The completion scripts, as they are installed and as `edl-ckpt completion SHELL` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BASH: Final = """\
# Completion of edl-ckpt in bash. A package puts this file where bash-completion finds it; by hand:
#   edl-ckpt completion bash > ~/.local/share/bash-completion/completions/edl-ckpt
# or, without bash-completion, in ~/.bashrc:
#   source <(edl-ckpt completion bash)
_edl_ckpt() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(_EDL_CKPT_COMPLETE=bash COMP_LINE=$COMP_LINE COMP_POINT=$COMP_POINT COMP_WORDBREAKS=$COMP_WORDBREAKS \\
        "${1/#\\~/$HOME}" </dev/null 2>/dev/null)
    compopt -o nospace -o nosort 2>/dev/null # a space stands in what needs one; the order is ours
}
complete -F _edl_ckpt edl-ckpt
"""
_ZSH: Final = """\
#compdef edl-ckpt
# Completion of edl-ckpt in zsh. A package puts this file where zsh finds it; by hand, a directory of $fpath:
#   edl-ckpt completion zsh > ~/.zfunc/_edl-ckpt
# with, in ~/.zshrc:
#   fpath+=~/.zfunc; autoload -Uz compinit; compinit
_edl_ckpt() {
    emulate -L zsh
    local word shown kind
    local -a open_words open_shown done_words done_shown
    while IFS= read -r word && IFS= read -r shown && IFS= read -r kind; do
        if [[ $kind == open ]]; then
            open_words+=("$word") open_shown+=("$shown")
        else
            done_words+=("$word") done_shown+=("$shown")
        fi
    done < <(_EDL_CKPT_COMPLETE=zsh "${(Q)words[1]/#\\~/$HOME}" "${(@Q)words[2,CURRENT-1]}" \\
        "$PREFIX" "$compstate[quote]" </dev/null 2>/dev/null)
    (( $#done_words )) && compadd -U -Q -V edl-ckpt -l -d done_shown -a done_words
    (( $#open_words )) && compadd -U -Q -V edl-ckpt-open -S '' -l -d open_shown -a open_words
    (( $#done_words + $#open_words ))
}
if [[ $funcstack[1] == _edl-ckpt ]]; then
    _edl_ckpt "$@"
else
    compdef _edl_ckpt edl-ckpt
fi
"""
_FISH: Final = """\
# Completion of edl-ckpt in fish. A package puts this file where fish finds it; by hand:
#   edl-ckpt completion fish > ~/.config/fish/completions/edl-ckpt.fish
function __edl_ckpt_complete
    set -l words (commandline -opc)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -l last (commandline -ct | string unescape)
    _EDL_CKPT_COMPLETE=fish $program $words[2..-1] "$last" </dev/null 2>/dev/null
end
complete --command edl-ckpt --no-files --keep-order --arguments '(__edl_ckpt_complete)'
"""
SCRIPTS: Final[Mapping[str, str]] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
PLACES: Final[Mapping[str, str]] = {
    "bash": "~/.local/share/bash-completion/completions/edl-ckpt",
    "zsh": "_edl-ckpt in a directory of $fpath, such as ~/.zfunc",
    "fish": "~/.config/fish/completions/edl-ckpt.fish",
}
