package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// addedJSON is the answer of add; the same names as in the HTTP API.
type addedJSON struct {
	Value           int64 `json:"value,string"`
	Applied         bool  `json:"applied"`
	Added           int64 `json:"added,string"`
	ExpiresAtMillis int64 `json:"expiresAtMillis,string"` // 0: never
}

// boundFlags are the flags of add beside the delta.
type boundFlags struct {
	min, max int64
	opts     client.AddOptions
}

func (b *boundFlags) define(c *cobra.Command) {
	f := c.Flags()
	f.Int64Var(&b.min, "min", 0, "the least `sum` that is allowed; below it nothing is added")
	f.Int64Var(&b.max, "max", 0, "the greatest `sum` that is allowed; above it nothing is added")
	f.BoolVar(&b.opts.Saturate, "saturate", false, "add as much as the bounds allow, instead of nothing")
	f.DurationVar(&b.opts.ExpiresIn, "ttl", 0, "expire after this `time`, such as 60s or 24h")
	f.BoolVar(&b.opts.ExpiryIfNone, "ttl-if-none", false, "let --ttl leave an expiry that is there: a window begins with its first add")
}

// options are what the flags ask for. The error is invalid_argument.
func (b *boundFlags) options(c *cobra.Command) (client.AddOptions, error) {
	opts, given := b.opts, c.Flags().Changed
	if given("min") {
		opts.Min = &b.min
	}
	if given("max") {
		opts.Max = &b.max
	}
	if opts.ExpiryIfNone && !given("ttl") {
		return opts, felix.Errorf(felix.InvalidArgument, "--ttl-if-none says when to set an expiry: say which with --ttl")
	}
	return opts, checkTTL(c)
}

// checkTTL refuses a --ttl that is given and is none.
func checkTTL(c *cobra.Command) error {
	if f := c.Flags().Lookup("ttl"); f.Changed && f.Value.String() == "0s" {
		return felix.Errorf(felix.InvalidArgument, "--ttl is 0: give a time such as 60s")
	}
	return nil
}

func (a *app) counterAdd(encoding *keyEncoding) *cobra.Command {
	var flags boundFlags
	c := leaf(&cobra.Command{
		Use:   "add CACHE KEY [DELTA]",
		Short: "Add to a counter (1 if no DELTA is given) and print the sum",
		Long: `Adds DELTA, or 1, to a counter and prints the sum. A counter that does not exist
begins at 0. The add is sent once: if the answer is lost the exit status is 3 and the
code outcome_unknown; with every other error nothing was added.

If the sum would be outside of --min or --max nothing is added: the sum as it is is
printed, and the exit status is 4. With --saturate as much is added as they allow.`,
		Example: `  felixctl counter add limits user:42:2026-10-17T09:15
  felixctl counter add stats stock -3 --min 0
  felixctl counter add limits user:42 --max 100 --ttl 60s --ttl-if-none`,
	}, 2, 3, func(cmd *cobra.Command, args []string) error {
		key, err := encoding.decode(args[1])
		if err != nil {
			return err
		}
		delta := int64(1)
		if len(args) == 3 {
			if delta, err = parseNumber("delta", args[2]); err != nil {
				return err
			}
		}
		opts, err := flags.options(cmd)
		if err != nil {
			return err
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		added, err := c.CounterAddWith(cmd.Context(), s.tenant, s.namespace, args[0], key, delta, opts)
		if err != nil {
			return err
		}
		out := addedJSON{Value: added.Value, Applied: added.Applied, Added: added.Added}
		if !added.ExpiresAt.IsZero() {
			out.ExpiresAtMillis = added.ExpiresAt.UnixMilli()
		}
		return a.answerUnless(!added.Applied, "nothing was added: the sum would be outside of the bounds", out,
			func(w io.Writer) { fmt.Fprintln(w, added.Value) })
	})
	flags.define(c)
	return c
}

func (a *app) counterSum(encoding *keyEncoding) *cobra.Command {
	return leaf(&cobra.Command{
		Use:   "sum CACHE [PREFIX]",
		Short: "Count the counters of a cache whose keys begin with PREFIX, and add them up",
		Example: `  felixctl counter sum stats
  felixctl counter sum limits user:42: --json`,
	}, 1, 2, func(cmd *cobra.Command, args []string) error {
		prefix := ""
		if len(args) == 2 {
			var err error
			if prefix, err = encoding.decode(args[1]); err != nil {
				return err
			}
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		count, sum, err := c.CounterTotals(cmd.Context(), s.tenant, s.namespace, args[0], prefix)
		if err != nil {
			return err
		}
		return a.answer(struct {
			Count int64  `json:"count,string"`
			Sum   string `json:"sum"`
		}{count, sum.String()}, func(w io.Writer) { fmt.Fprintln(w, totals(count, sum)) })
	})
}
