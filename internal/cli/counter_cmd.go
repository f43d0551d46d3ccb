package cli

import (
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// counterJSON is a counter in --json answers; the same names as in the HTTP
// API: a key that is no UTF-8 is in keyBytes, in base64, and not in key.
type counterJSON struct {
	Key             *string `json:"key,omitempty"`
	KeyBytes        string  `json:"keyBytes,omitempty"`
	Value           int64   `json:"value,string"`
	ExpiresAtMillis int64   `json:"expiresAtMillis,string"` // 0: never
}

func counterToJSON(c client.Counter) counterJSON {
	j := counterJSON{Value: c.Value}
	if !c.ExpiresAt.IsZero() {
		j.ExpiresAtMillis = c.ExpiresAt.UnixMilli()
	}
	if utf8.ValidString(c.Key) {
		j.Key = &c.Key
	} else {
		j.KeyBytes = base64.StdEncoding.EncodeToString([]byte(c.Key))
	}
	return j
}

// valueJSON is the answer of set: what the counter holds now.
type valueJSON struct {
	Value int64 `json:"value,string"`
}

func (a *app) counterCommands() *cobra.Command {
	encoding := textKeys
	c := a.group(&cobra.Command{
		Use:   "counter",
		Short: "Add to, read, set, delete, list, sum up and watch counters",
		Long: `Works on the counters of a cache. A key is any bytes. With --key-encoding text (the
default) the argument is the key; escaped reads \n, \x1b, \" and \\ as Go does; hex
and base64 are what they say. A key that would not print safely is shown in double
quotes, escaped: give it back with --key-encoding escaped, quotes and all.`,
	}, a.counterAdd(&encoding), a.counterGet(&encoding), a.counterSet(&encoding), a.counterDelete(&encoding), a.counterList(&encoding),
		a.counterSum(&encoding), a.watchCommand("counter", false, &encoding))
	encoding.flag(c.PersistentFlags())
	return c
}

// parseNumber reads a signed 64-bit number; what says which. The error is
// invalid_argument.
func parseNumber(what, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, felix.Errorf(felix.InvalidArgument, "%s %s: give a whole number from -9223372036854775808 to 9223372036854775807", what, strconv.Quote(text))
	}
	return n, nil
}

func (a *app) counterGet(encoding *keyEncoding) *cobra.Command {
	return leaf(&cobra.Command{
		Use:     "get CACHE KEY",
		Short:   "Print a counter; exit status 5 if it was never written, has expired or was deleted",
		Example: "  felixctl counter get limits user:42:2026-10-17T09:15",
	}, 2, 2, func(cmd *cobra.Command, args []string) error {
		key, err := encoding.decode(args[1])
		if err != nil {
			return err
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		counter, found, err := c.CounterGet(cmd.Context(), s.tenant, s.namespace, args[0], key)
		if err != nil {
			return err
		}
		if !found {
			return noCounter(*encoding, key)
		}
		return a.answer(counterToJSON(counter), func(w io.Writer) { fmt.Fprintln(w, counter.Value) })
	})
}

func noCounter(encoding keyEncoding, key string) error {
	return felix.Errorf(felix.CounterNotFound, "there is no counter %s: it was never written, has expired or was deleted", encoding.show(key))
}

func (a *app) counterSet(encoding *keyEncoding) *cobra.Command {
	return leaf(&cobra.Command{
		Use:     "set CACHE KEY VALUE",
		Short:   "Make a counter hold a value, and print it",
		Example: "  felixctl counter set stats stock 100",
	}, 3, 3, func(cmd *cobra.Command, args []string) error {
		key, err := encoding.decode(args[1])
		if err != nil {
			return err
		}
		value, err := parseNumber("value", args[2])
		if err != nil {
			return err
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.CounterSet(cmd.Context(), s.tenant, s.namespace, args[0], key, value); err != nil {
			return err
		}
		return a.answer(valueJSON{value}, func(w io.Writer) { fmt.Fprintln(w, value) })
	})
}

func (a *app) counterDelete(encoding *keyEncoding) *cobra.Command {
	return leaf(&cobra.Command{
		Use:   "del CACHE KEY",
		Short: "Delete a counter; exit status 5 if there is none",
		Long: `Deletes a counter, for good. On a terminal it asks first; elsewhere it needs --yes.
If there was no such counter the exit status is 5.`,
		Example: "  felixctl counter del stats stock --yes",
	}, 2, 2, func(cmd *cobra.Command, args []string) error {
		key, err := encoding.decode(args[1])
		if err != nil {
			return err
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		question := fmt.Sprintf("Delete counter %s of cache %s/%s/%s?", encoding.show(key), s.tenant, s.namespace, args[0])
		if err := a.confirm(cmd, question); err != nil {
			return err
		}
		deleted, err := c.CounterDelete(cmd.Context(), s.tenant, s.namespace, args[0], key)
		if err != nil {
			return err
		}
		if !deleted {
			return noCounter(*encoding, key)
		}
		return a.answer(struct {
			Deleted bool `json:"deleted"`
		}{true}, func(w io.Writer) { fmt.Fprintf(w, "deleted %s\n", encoding.show(key)) })
	})
}
