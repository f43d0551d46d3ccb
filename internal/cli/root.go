package cli

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/felix-go/felix"
)

// rootCommand is the whole tree of commands.
func (a *app) rootCommand() *cobra.Command {
	root := a.group(&cobra.Command{
		Use:   "felixctl",
		Short: "Work with the caches, counters and values of Felix",
		Long: `felixctl works with the caches of Felix brokers, and the counters and values in them.

Exit status: 0 done; 1 a failure here or a bug; 2 wrong usage or a bad name, key
or number; 3 no answer from a broker (the error says whether the change may have
been made: code outcome_unknown); 4 refused; 5 there is no such cache, counter,
value, node, shard or feature.

Flags may stand anywhere. A flag beats its environment variable, which beats the
context, which beats the default. What begins with '-' and is no flag goes after
"--"; negative numbers need not.`,
		Example: `  felixctl cache create limits
  felixctl counter add limits user:42
  felixctl counter add stats stock -3 --brokers 10.0.0.7:7380`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}, a.cacheCommands(), a.counterCommands(), a.batchCommand(), a.nodeCommands(), a.shardCommands(), a.topologyCommand(), a.featureCommands(),
		a.benchCommands(), a.contextCommands(), a.versionCommand())
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(a.helpCommand(root))
	a.addGlobalFlags(root)
	return root
}

// group makes a command that only has others below it. Alone it shows its help.
func (a *app) group(c *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	c.AddCommand(subs...)
	c.SuggestionsMinimumDistance = 2
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		typed := unquoteWords(args)[0]
		message := fmt.Sprintf("%q has no command %q", cmd.CommandPath(), typed)
		if near := cmd.SuggestionsFor(typed); len(near) > 0 {
			message += fmt.Sprintf("; did you mean %q?", cmd.CommandPath()+" "+near[0])
		} else {
			message += fmt.Sprintf("; see %q", cmd.CommandPath()+" --help")
		}
		return felix.Errorf(felix.InvalidArgument, "%s", message)
	}
	return c
}

// helpCommand replaces cobra's, which forgives topics that do not exist.
func (a *app) helpCommand(root *cobra.Command) *cobra.Command {
	return leaf(&cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
	}, 0, 2, func(_ *cobra.Command, args []string) error {
		found, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 {
			return felix.Errorf(felix.InvalidArgument, "there is no command %q; see %q", strings.Join(args, " "), "felixctl --help")
		}
		found.InitDefaultHelpFlag()
		return found.Help()
	})
}

// leaf makes a command that does something. c.Use names its arguments, those in
// brackets optional; run gets between least and most of them.
func leaf(c *cobra.Command, least, most int, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	c.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		return felix.Errorf(felix.InvalidArgument, "%d arguments are wrong: %s", len(args), strings.TrimSuffix(cmd.UseLine(), " [flags]"))
	}
	c.RunE = func(cmd *cobra.Command, args []string) error { return run(cmd, unquoteWords(args)) }
	return c
}

// flagError adds to cobra's words about a flag what to do instead.
func flagError(cmd *cobra.Command, err error) error {
	message := err.Error()
	if typed, ok := strings.CutPrefix(message, "unknown flag: "); ok {
		if near := nearestFlag(cmd, typed); near != "" {
			message += fmt.Sprintf("; did you mean %s?", near)
		} else {
			message += fmt.Sprintf("; see %q", cmd.CommandPath()+" --help")
		}
	} else if strings.HasPrefix(message, "unknown shorthand flag") {
		message += fmt.Sprintf("; see %q; an argument that begins with '-' goes after --", cmd.CommandPath()+" --help")
	}
	return felix.Errorf(felix.InvalidArgument, "%s", message)
}

// nearestFlag is the flag of the command that differs least from what was
// typed, if it differs little.
func nearestFlag(cmd *cobra.Command, typed string) string {
	name, _, _ := strings.Cut(strings.TrimLeft(typed, "-"), "=")
	best, least := "", 3
	look := func(f *pflag.Flag) {
		d := distance(name, f.Name)
		if strings.HasPrefix(f.Name, name) {
			d = 1
		}
		if d < least {
			best, least = "--"+f.Name, d
		}
	}
	cmd.Flags().VisitAll(look)
	cmd.InheritedFlags().VisitAll(look)
	return best
}

// distance is Levenshtein's: insertions, deletions and changes of bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// versionCommand tells what this binary is, from what the Go linker recorded.
func (a *app) versionCommand() *cobra.Command {
	return leaf(&cobra.Command{
		Use:   "version",
		Short: "Print the version of felixctl",
	}, 0, 0, func(*cobra.Command, []string) error {
		v := struct {
			Version  string `json:"version"`
			Revision string `json:"revision"`
			Go       string `json:"go"`
			Platform string `json:"platform"`
		}{"(devel)", "", runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
		if info, ok := debug.ReadBuildInfo(); ok {
			if info.Main.Version != "" {
				v.Version = info.Main.Version
			}
			for _, s := range info.Settings {
				if s.Key == "vcs.revision" {
					v.Revision = s.Value
				}
			}
		}
		return a.answer(v, func(w io.Writer) {
			fmt.Fprintf(w, "felixctl %s %s %s\n", v.Version, v.Go, v.Platform)
		})
	})
}

// confirm asks before something is destroyed. It is nil if the user agreed; the
// error is invalid_argument otherwise, and nothing may be done then.
func (a *app) confirm(cmd *cobra.Command, question string) error {
	if a.flags.yes {
		return nil
	}
	file, ok := a.in.(*os.File)
	if !ok || !isTerminal(file) {
		return felix.Errorf(felix.InvalidArgument, "%s Nobody can be asked, as standard input is no terminal: say --yes", question)
	}
	fmt.Fprintf(a.errOut, "%s [y/N] ", printable(question))
	answer, err := readLine(cmd.Context(), file)
	if err != nil {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return felix.Errorf(felix.InvalidArgument, "not confirmed; nothing was changed")
}
