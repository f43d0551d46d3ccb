package cli

import (
	"encoding/base64"
	"fmt"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// watchJSON is an event in --json answers, one object a line; the same names as in
// the HTTP API.
type watchJSON struct {
	Event           string  `json:"event"` // put, delete, synced, reset
	Key             *string `json:"key,omitempty"`
	KeyBytes        string  `json:"keyBytes,omitempty"`
	Value           *string `json:"value,omitempty"`
	ValueBytes      string  `json:"valueBytes,omitempty"`
	ExpiresAtMillis int64   `json:"expiresAtMillis,string"` // 0: never
	Version         uint64  `json:"version,string"`
	Skipped         bool    `json:"skipped"`
	Token           string  `json:"token"`
}

// watchCommand is counter watch, or with values cache watch.
func (a *app) watchCommand(what string, values bool, encoding *keyEncoding) *cobra.Command {
	opts := client.WatchOptions{Values: values}
	var prefix string
	var count int
	c := leaf(&cobra.Command{
		Use:   "watch CACHE [KEY]",
		Short: "Print the changes of a " + what + ", or of all of them, as they come",
		Long: `Prints a line for each change: "put KEY VALUE" or "delete KEY", with "(skipped)" at
the end where changes of the key before it were left out, because they were not
read in time. "synced" says that the current state has been told and changes
follow, "reset" that it is told anew: forget what was printed before.

Watches all keys unless one is named, or --prefix is given. When a broker is lost
it goes on at the next one. It ends by Ctrl-C, or with --count.`,
		Example: "  felixctl " + map[bool]string{false: "counter", true: "cache"}[values] + " watch limits --prefix user:42: --initial",
	}, 1, 2, func(cmd *cobra.Command, args []string) (err error) {
		if opts.Prefix, err = encoding.decode(prefix); err != nil {
			return err
		}
		if len(args) == 2 {
			if opts.Key, err = encoding.decode(args[1]); err != nil {
				return err
			}
			if opts.Key == "" {
				return felix.Errorf(felix.InvalidArgument, "the key is empty")
			}
		}
		if count < 0 {
			return felix.Errorf(felix.InvalidArgument, "--count is %d: give a number of changes, or 0 for no end", count)
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		told := 0
		for e, err := range c.Watch(cmd.Context(), s.tenant, s.namespace, args[0], opts) {
			if err != nil {
				return err
			}
			if err := a.showEvent(&e, values, *encoding); err != nil {
				return err
			}
			if a.out.Flush() != nil {
				return nil // run reports it
			}
			if e.Kind == felix.WatchPut || e.Kind == felix.WatchDelete {
				told++
			}
			if count > 0 && told == count {
				return nil
			}
		}
		return nil
	})
	c.Flags().StringVar(&prefix, "prefix", "", "watch all keys that begin with this `text`")
	c.Flags().BoolVar(&opts.Initial, "initial", false, "tell the current state first")
	c.Flags().StringVar(&opts.Resume, "resume", "", "go on behind the event with this `token`, which --json prints")
	c.Flags().IntVar(&count, "count", 0, "end after this `number` of puts and deletes; 0 for no end")
	return c
}

// valueWatch is cache watch.
func (a *app) valueWatch() *cobra.Command {
	encoding := textKeys
	c := a.watchCommand("cache value", true, &encoding)
	encoding.flag(c.Flags())
	return c
}

func (a *app) showEvent(e *client.WatchEvent, values bool, encoding keyEncoding) error {
	if a.flags.json {
		line, err := marshal(eventToJSON(e, values))
		if err != nil {
			return felix.Errorf(felix.Internal, "an event cannot be shown: %v", err)
		}
		fmt.Fprintf(a.out, "%s\n", line)
		return nil
	}
	text := e.Kind.String()
	if e.Kind == felix.WatchPut || e.Kind == felix.WatchDelete {
		text += " " + encoding.show(e.Key)
	}
	switch {
	case e.Kind != felix.WatchPut:
	case values:
		text += " " + textKeys.show(string(e.Data))
	default:
		text += fmt.Sprintf(" %d", e.Value)
	}
	if e.Skipped {
		text += " (skipped)"
	}
	fmt.Fprintln(a.out, text)
	return nil
}

func eventToJSON(e *client.WatchEvent, values bool) watchJSON {
	j := watchJSON{Event: e.Kind.String(), Version: e.Version, Skipped: e.Skipped, Token: e.Token}
	if !e.ExpiresAt.IsZero() {
		j.ExpiresAtMillis = e.ExpiresAt.UnixMilli()
	}
	switch {
	case e.Kind != felix.WatchPut && e.Kind != felix.WatchDelete:
		return j
	case utf8.ValidString(e.Key):
		j.Key = &e.Key
	default:
		j.KeyBytes = base64.StdEncoding.EncodeToString([]byte(e.Key))
	}
	switch data := string(e.Data); {
	case e.Kind == felix.WatchDelete:
	case !values:
		j.Value = new(fmt.Sprint(e.Value))
	case utf8.ValidString(data):
		j.Value = &data
	default:
		j.ValueBytes = base64.StdEncoding.EncodeToString(e.Data)
	}
	return j
}
