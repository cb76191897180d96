
_edl_ckpt_completion() {
    local IFS=$'
'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \
                   COMP_CWORD=$COMP_CWORD \
                   _EDL_CKPT_COMPLETE=complete_bash $1 ) )
    return 0
}

complete -o default -F _edl_ckpt_completion edl-ckpt

