package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// literal begins an argument that begins with '-' but is no flag, on its way
// through cobra. No real argument contains a zero byte.
const literal = "\x00"

// normalize puts words before flags, so that cobra finds the command wherever
// the flags stand, and marks as literal the words that look like flags: numbers
// such as -3, and everything after "--".
func normalize(root *cobra.Command, args []string) []string {
	if len(args) > 0 && strings.HasPrefix(args[0], "__complete") {
		return args // the shell's completion depends on the order
	}
	known := collectFlags(root)
	var words, flags []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			for _, word := range args[i+1:] {
				words = append(words, quoteWord(word))
			}
			i = len(args)
		case !strings.HasPrefix(arg, "-") || arg == "-" || isNumber(arg):
			words = append(words, quoteWord(arg))
		default:
			flags = append(flags, arg)
			if known.wantsValue(arg) && i+1 < len(args) {
				i++
				flags = append(flags, args[i])
			}
		}
	}
	return append(words, flags...)
}

func isNumber(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && arg[1] >= '0' && arg[1] <= '9'
}

func quoteWord(word string) string {
	if strings.HasPrefix(word, "-") {
		return literal + word
	}
	return word
}

// unquoteWords undoes quoteWord.
func unquoteWords(words []string) []string {
	plain := make([]string, len(words))
	for i, word := range words {
		plain[i] = strings.TrimPrefix(word, literal)
	}
	return plain
}

// flagSet is every flag of every command by name ("--json", "-n"), and whether
// it wants a value. No two commands use a name differently.
type flagSet map[string]bool

func collectFlags(c *cobra.Command) flagSet {
	set := flagSet{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		add := func(f *pflag.Flag) {
			set["--"+f.Name] = f.NoOptDefVal == ""
			if f.Shorthand != "" {
				set["-"+f.Shorthand] = f.NoOptDefVal == ""
			}
		}
		c.Flags().VisitAll(add)
		c.PersistentFlags().VisitAll(add)
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(c)
	return set
}

// wantsValue says whether the value of the flag is the next argument.
func (s flagSet) wantsValue(arg string) bool {
	if strings.Contains(arg, "=") {
		return false
	}
	if strings.HasPrefix(arg, "--") {
		return s[arg]
	}
	// Several letters are several flags, up to the first with a value.
	for i := 1; i < len(arg); i++ {
		if s["-"+arg[i:i+1]] {
			return i == len(arg)-1
		}
	}
	return false
}
