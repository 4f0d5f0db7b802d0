"""What shells run to complete a command line of this program, in place of the scripts of typer.

Names and values of this program hold ``=``, ``:`` and ``@``, at which bash takes a word apart. So
words are put together again before the program is asked, and of its answers only what follows the
last such sign is given back; bash wants ``@`` back too. All scripts complete the value of
``--option=value``, and add no space behind a ``=``, which a value follows.
"""

import contextlib

BASH = r"""
%(complete_func)s() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} word kept option=
    local -a words=() found=()
    for word in "${COMP_WORDS[@]:0:COMP_CWORD}" ''; do
        if [[ ${#words[@]} == 0 || $line == [[:space:]]* ]]; then
            words+=('')
            line=${line#"${line%%%%[![:space:]]*}"}
        fi
        [[ $word ]] || word=$line
        words[-1]+=$word
        line=${line#"$word"}
    done
    word=${words[-1]}
    kept=${word%%"${word##*[$COMP_WORDBREAKS]}"}
    kept=${kept%%@}
    [[ $word == --*=* ]] && option=${word%%%%=*}=
    mapfile -t found < <(
        env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
            %(autocomplete_var)s=complete_bash "$1"
    )
    COMPREPLY=()
    for word in "${found[@]}"; do
        [[ $word ]] || continue
        word=$option$word
        COMPREPLY+=("${word#"$kept"}")
    done
    [[ ${#found[@]} == 1 && ${found[0]} == *= ]] && compopt -o nospace 2>/dev/null
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""

ZSH = r"""
#compdef %(prog_name)s

%(complete_func)s() {
  local answer="$(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" %(autocomplete_var)s=complete_zsh %(prog_name)s)"
  [[ $PREFIX == --*=* ]] && compset -P 1 '*='
  if [[ $answer =~ '\(\("([a-z_]+=)"\)\)' ]]; then
    compadd -S '' -- $match[1]
  else
    eval $answer
  fi
}

compdef %(complete_func)s %(prog_name)s
"""  # noqa: E501 - a line of zsh

FISH = r"""
function %(complete_func)s
    set -l option (string match --regex -- '^--[^=]+=' (commandline -ct); or echo)
    for found in (env %(autocomplete_var)s=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=(commandline -cp) %(prog_name)s)
        echo $option$found
    end
end

complete --command %(prog_name)s --no-files --arguments "(%(complete_func)s)" --condition "env %(autocomplete_var)s=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args _TYPER_COMPLETE_ARGS=(commandline -cp) %(prog_name)s"
"""  # noqa: E501 - lines of fish


def use_own_scripts() -> None:
    """Let ``--show-completion`` and ``--install-completion`` give the scripts above.

    Where a version of typer keeps its own elsewhere, those stay.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from typer import _completion_classes as classes
        from typer import _completion_shared as shared

        for name, script, of_shell in (
            ("bash", BASH, classes.BashComplete),
            ("zsh", ZSH, classes.ZshComplete),
            ("fish", FISH, classes.FishComplete),
        ):
            shared._completion_scripts[name] = script
            of_shell.source_template = script
