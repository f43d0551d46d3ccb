package cli

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// fromInput is the argument that stands for what is on standard input.
const fromInput = "-"

// storedJSON is a cache value in --json answers; the same names as in the HTTP
// API: what is no UTF-8 is in keyBytes and valueBytes, in base64.
type storedJSON struct {
	Key             *string `json:"key,omitempty"`
	KeyBytes        string  `json:"keyBytes,omitempty"`
	Value           *string `json:"value,omitempty"`
	ValueBytes      string  `json:"valueBytes,omitempty"`
	ExpiresAtMillis int64   `json:"expiresAtMillis,string"` // 0: never
	Version         uint64  `json:"version,string"`
}

func valueToJSON(v client.Value) storedJSON {
	j := storedJSON{Version: v.Version}
	if !v.ExpiresAt.IsZero() {
		j.ExpiresAtMillis = v.ExpiresAt.UnixMilli()
	}
	if utf8.ValidString(v.Key) {
		j.Key = &v.Key
	} else {
		j.KeyBytes = base64.StdEncoding.EncodeToString([]byte(v.Key))
	}
	if data := string(v.Data); utf8.ValidString(data) {
		j.Value = &data
	} else {
		j.ValueBytes = base64.StdEncoding.EncodeToString(v.Data)
	}
	return j
}

// versionFlag defines --if-version.
func versionFlag(c *cobra.Command, into *uint64, what string) {
	c.Flags().Uint64Var(into, "if-version", 0, what+" only if the value has this `version`")
}

// checkVersion refuses a --if-version that is given and can be of no value: for
// the API it would be none.
func checkVersion(c *cobra.Command, version uint64) error {
	if version == 0 && c.Flags().Changed("if-version") {
		return felix.Errorf(felix.InvalidArgument, "--if-version is 0: no value has that version; see --if-absent")
	}
	return nil
}

func (a *app) valuePut() *cobra.Command {
	encoding := textKeys
	var opts client.PutOptions
	c := leaf(&cobra.Command{
		Use:   "put CACHE KEY VALUE",
		Short: "Store a value (- reads it from standard input) and print its version",
		Long: `Stores a value of at most 1 MiB and prints its version, which is greater with every
write and never used again. VALUE is taken as it is; - stands for all that is on
standard input. If a condition is not met nothing is stored: the version that is there
is printed (0 if there is no value), and the exit status is 4.`,
		Example: `  felixctl cache put default greeting hello --ttl 24h
  felixctl cache put default config - < config.json
  felixctl cache put default config - --if-version 1099511627777 < config.json`,
	}, 3, 3, func(cmd *cobra.Command, args []string) error {
		key, err := encoding.decode(args[1])
		if err != nil {
			return err
		}
		if err := checkTTL(cmd); err != nil {
			return err
		}
		if err := checkVersion(cmd, opts.IfVersion); err != nil {
			return err
		}
		value := []byte(args[2])
		if args[2] == fromInput {
			if value, err = readAll(cmd.Context(), a.in, felix.MaxValueBytes); err != nil {
				return err
			}
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		applied, version, err := c.ValuePut(cmd.Context(), s.tenant, s.namespace, args[0], key, value, opts)
		if err != nil {
			return err
		}
		return a.answerUnless(!applied, "nothing was stored: the condition is not met", struct {
			Applied bool   `json:"applied"`
			Version uint64 `json:"version,string"`
		}{applied, version}, func(w io.Writer) { fmt.Fprintln(w, version) })
	})
	encoding.flag(c.Flags())
	c.Flags().DurationVar(&opts.ExpiresIn, "ttl", 0, "expire after this `time`, such as 60s or 24h")
	c.Flags().BoolVar(&opts.KeepExpiry, "keep-ttl", false, "keep the expiry that the value has")
	c.Flags().BoolVar(&opts.IfAbsent, "if-absent", false, "store only if there is no value")
	versionFlag(c, &opts.IfVersion, "store")
	return c
}

func (a *app) valueGet() *cobra.Command {
	encoding := textKeys
	c := leaf(&cobra.Command{
		Use:   "get CACHE KEY",
		Short: "Print a value; exit status 5 if it was never written, has expired or was deleted",
		Long: `Prints a value: into a file or a pipe its bytes as they are, on a terminal with what
would not print safely escaped, and a line end. --json tells its version and expiry.`,
		Example: `  felixctl cache get default greeting
  felixctl cache get default config > config.json`,
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
		value, found, err := c.ValueGet(cmd.Context(), s.tenant, s.namespace, args[0], key)
		if err != nil {
			return err
		}
		if !found {
			return noValue(encoding, key)
		}
		return a.answer(valueToJSON(value), func(w io.Writer) { showValue(w, value.Data, a.terminal) })
	})
	encoding.flag(c.Flags())
	return c
}

func noValue(encoding keyEncoding, key string) error {
	return felix.Errorf(felix.ValueNotFound, "there is no value %s: it was never written, has expired or was deleted", encoding.show(key))
}

func (a *app) valueDelete() *cobra.Command {
	encoding := textKeys
	var version uint64
	c := leaf(&cobra.Command{
		Use:   "del CACHE KEY",
		Short: "Delete a value; exit status 5 if there is none",
		Long: `Deletes a value, for good. On a terminal it asks first; elsewhere it needs --yes. If
there was none the exit status is 5; if it has another version than --if-version that
is printed, and the exit status is 4.`,
		Example: "  felixctl cache del default greeting --yes",
	}, 2, 2, func(cmd *cobra.Command, args []string) error {
		key, err := encoding.decode(args[1])
		if err != nil {
			return err
		}
		if err := checkVersion(cmd, version); err != nil {
			return err
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		question := fmt.Sprintf("Delete value %s of cache %s/%s/%s?", encoding.show(key), s.tenant, s.namespace, args[0])
		if err := a.confirm(cmd, question); err != nil {
			return err
		}
		deleted, there, err := c.ValueDelete(cmd.Context(), s.tenant, s.namespace, args[0], key, version)
		if err != nil {
			return err
		}
		if !deleted && there == 0 {
			return noValue(encoding, key)
		}
		return a.answerUnless(!deleted, "nothing was deleted: the value has another version", struct {
			Deleted bool   `json:"deleted"`
			Version uint64 `json:"version,string"`
		}{deleted, there}, func(w io.Writer) {
			if deleted {
				fmt.Fprintf(w, "deleted %s\n", encoding.show(key))
			} else {
				fmt.Fprintln(w, there)
			}
		})
	})
	encoding.flag(c.Flags())
	versionFlag(c, &version, "delete")
	return c
}

// showValue prints a value: as it is, or for a terminal without what that would
// act on, and with a line end.
func showValue(w io.Writer, value []byte, terminal bool) {
	if !terminal {
		w.Write(value) // w keeps the error until run flushes it
		return
	}
	for line := range strings.Lines(string(value)) {
		text, ended := strings.CutSuffix(line, "\n")
		for i, part := range strings.Split(text, "\t") {
			if i > 0 {
				io.WriteString(w, "\t")
			}
			io.WriteString(w, printable(part))
		}
		if ended {
			io.WriteString(w, "\n")
		}
	}
	if len(value) == 0 || value[len(value)-1] != '\n' {
		io.WriteString(w, "\n")
	}
}

// readAll reads to the end, at most limit bytes. If ctx ends first, as by Ctrl-C,
// the error is unavailable (nothing was done); the read then goes on until the
// process ends.
func readAll(ctx context.Context, r io.Reader, limit int) ([]byte, error) {
	type result struct {
		all []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		all, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
		done <- result{all, err}
	}()
	select {
	case <-ctx.Done():
		return nil, felix.Errorf(felix.Unavailable, "interrupted; nothing was changed")
	case got := <-done:
		if got.err != nil {
			return nil, felix.Errorf(felix.Internal, "standard input cannot be read; nothing was changed: %v", got.err)
		}
		if len(got.all) > limit {
			return nil, felix.Errorf(felix.InvalidArgument, "standard input has more than %s bytes, which is the most that a value may have", strconv.Itoa(limit))
		}
		return got.all, nil
	}
}
