package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// contextJSON is a context in --json answers.
type contextJSON struct {
	Name string `json:"name"`
	namedContext
	Current bool `json:"current"`
}

func (a *app) contextCommands() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "context",
		Short: "Keep settings (brokers, tenant, namespace) under names",
		Long: `A context keeps brokers, tenant and namespace under a name, in
$XDG_CONFIG_HOME/felix/contexts.json (default ~/.config/felix/contexts.json; the file
named by FELIXCTL_CONFIG instead, if set). Flags and environment variables beat it.`,
	}, a.contextAdd(), a.contextList(), a.contextUse(), a.contextRemove())
}

func (a *app) contextAdd() *cobra.Command {
	var replace bool
	c := leaf(&cobra.Command{
		Use:   "add NAME",
		Short: "Add a context with the given --brokers, --tenant and --namespace",
		Long: `Adds a context. It keeps the flags that are given, not what the environment says.
The same settings again succeed; other settings need --replace.`,
		Example: "  felixctl context add prod --brokers felix-1:7380,felix-2:7380 --tenant acme",
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		added, err := a.contextFromFlags(cmd)
		if err != nil {
			return err
		}
		if err := felix.ValidateName("context", args[0]); err != nil {
			return err
		}
		file, err := a.loadContexts()
		if err != nil {
			return err
		}
		old, exists := file.Contexts[args[0]]
		same := old.Tenant == added.Tenant && old.Namespace == added.Namespace && slices.Equal(old.Brokers, added.Brokers)
		if exists && !same && !replace {
			return felix.Errorf(felix.AlreadyExists, "context %q exists with other settings: say --replace", args[0])
		}
		file.Contexts[args[0]] = added
		if err := a.saveContexts(file); err != nil {
			return err
		}
		return a.answer(contextJSON{args[0], added, file.Current == args[0]}, func(w io.Writer) {
			fmt.Fprintf(w, "added %s; to use it: felixctl context use %s\n", args[0], args[0])
		})
	})
	c.Flags().BoolVar(&replace, "replace", false, "replace a context of that name")
	return c
}

// contextFromFlags checks what a context would hold before it is kept. The
// error is invalid_argument.
func (a *app) contextFromFlags(cmd *cobra.Command) (namedContext, error) {
	var c namedContext
	var err error
	given := cmd.Flags().Changed
	if given("brokers") {
		if c.Brokers, err = splitBrokers(a.flags.brokers); err != nil {
			return c, err
		}
		if _, err := client.New(client.Options{Brokers: c.Brokers}); err != nil {
			return c, err
		}
	}
	if given("tenant") {
		c.Tenant = a.flags.tenant
		if err := felix.ValidateName("tenant", c.Tenant); err != nil {
			return c, err
		}
	}
	if given("namespace") {
		c.Namespace = a.flags.namespace
		if err := felix.ValidateName("namespace", c.Namespace); err != nil {
			return c, err
		}
	}
	if !given("brokers") && !given("tenant") && !given("namespace") {
		return c, felix.Errorf(felix.InvalidArgument, "the context would be empty: give --brokers, --tenant or --namespace")
	}
	return c, nil
}

func (a *app) contextList() *cobra.Command {
	return leaf(&cobra.Command{
		Use:   "ls",
		Short: "List the contexts; the one in use is marked",
	}, 0, 0, func(*cobra.Command, []string) error {
		file, err := a.loadContexts()
		if err != nil {
			return err
		}
		list := []contextJSON{}
		for _, name := range slices.Sorted(maps.Keys(file.Contexts)) {
			list = append(list, contextJSON{name, file.Contexts[name], name == file.Current})
		}
		return a.answer(struct {
			Contexts []contextJSON `json:"contexts"`
		}{list}, func(w io.Writer) {
			t := table(w)
			fmt.Fprintln(t, "USED\tNAME\tBROKERS\tTENANT\tNAMESPACE")
			for _, c := range list {
				mark := " "
				if c.Current {
					mark = "*"
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", mark, printable(c.Name), orDash(strings.Join(c.Brokers, ",")), orDash(c.Tenant), orDash(c.Namespace))
			}
			_ = t.Flush() // w keeps the error until run flushes it
		})
	})
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

func (a *app) contextUse() *cobra.Command {
	return leaf(&cobra.Command{
		Use:     "use NAME",
		Short:   "Use a context from now on",
		Example: "  felixctl context use prod",
	}, 1, 1, func(_ *cobra.Command, args []string) error {
		file, err := a.loadContexts()
		if err != nil {
			return err
		}
		used, err := file.find(args[0])
		if err != nil {
			return err
		}
		file.Current = args[0]
		if err := a.saveContexts(file); err != nil {
			return err
		}
		return a.answer(contextJSON{args[0], used, true}, func(w io.Writer) { fmt.Fprintf(w, "using %s\n", printable(args[0])) })
	})
}

func (a *app) contextRemove() *cobra.Command {
	return leaf(&cobra.Command{
		Use:     "rm NAME",
		Short:   "Remove a context; if it is in use, none is afterwards",
		Example: "  felixctl context rm prod",
	}, 1, 1, func(_ *cobra.Command, args []string) error {
		file, err := a.loadContexts()
		if err != nil {
			return err
		}
		if _, err := file.find(args[0]); err != nil {
			return err
		}
		delete(file.Contexts, args[0])
		if file.Current == args[0] {
			file.Current = ""
		}
		if err := a.saveContexts(file); err != nil {
			return err
		}
		return a.answer(struct {
			Removed string `json:"removed"`
		}{args[0]}, func(w io.Writer) { fmt.Fprintf(w, "removed %s\n", printable(args[0])) })
	})
}
