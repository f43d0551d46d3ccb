package cli

import (
	"fmt"
	"iter"
	"math/big"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// pageItems is how many counters a list asks for at a time, and how many rows
// of a table are aligned with each other.
const pageItems = 1_000

// leastPageItems is the least that a list asks for at a time, however low its
// limit: what was deleted lately uses up a page too, and each is a round trip.
const leastPageItems = 100

func (a *app) counterList(encoding *keyEncoding) *cobra.Command {
	var limit int
	c := leaf(&cobra.Command{
		Use:   "ls CACHE [PREFIX]",
		Short: "List the counters of a cache whose keys begin with PREFIX",
		Long: `Lists counters in the byte order of their keys, all of them unless --limit is given.
The last line says how many there are and what they add up to. With --json it is one
object, {"counters":[…],"more":…,"count":…,"sum":…}, written as it is read: if the exit
status is not 0 it is not complete.`,
		Example: `  felixctl counter ls limits
  felixctl counter ls limits user:42: --limit 100 --json`,
	}, 1, 2, func(cmd *cobra.Command, args []string) error {
		prefix := ""
		if len(args) == 2 {
			var err error
			if prefix, err = encoding.decode(args[1]); err != nil {
				return err
			}
		}
		if limit < 0 {
			return felix.Errorf(felix.InvalidArgument, "--limit is %d: give a number of counters, or 0 for all", limit)
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		page := pageItems
		if limit > 0 { // and one more, to know whether there is more
			page = max(min(limit, pageItems-1)+1, leastPageItems)
		}
		list := c.CounterList(cmd.Context(), s.tenant, s.namespace, args[0], prefix, page)
		if a.flags.json {
			return a.listJSON(list, limit)
		}
		return a.listTable(list, limit, *encoding)
	})
	c.Flags().IntVar(&limit, "limit", 0, "at most this `number` of counters; 0 for all")
	return c
}

// listTable prints rows as they come. It says on standard error when a limit
// left something out.
func (a *app) listTable(list iter.Seq2[client.Counter, error], limit int, encoding keyEncoding) error {
	const head = "KEY\tVALUE\tEXPIRES"
	t := table(a.out)
	rows, sum := 0, new(big.Int)
	for counter, err := range list {
		if err != nil {
			_ = t.Flush() // what was read is shown; run reports a failing writer
			return err
		}
		if rows == 0 {
			fmt.Fprintln(t, head)
		}
		if limit > 0 && rows == limit {
			a.warn(fmt.Sprintf("there are more than %d counters; raise --limit to see them", limit))
			break
		}
		expires := "never"
		if !counter.ExpiresAt.IsZero() {
			expires = showTime(counter.ExpiresAt)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\n", encoding.show(counter.Key), counter.Value, expires)
		sum.Add(sum, big.NewInt(counter.Value))
		if rows++; rows%pageItems == 0 {
			if err := t.Flush(); err != nil {
				return nil // run reports it; reading on is no use
			}
			t = table(a.out)
		}
	}
	if rows == 0 {
		fmt.Fprintln(t, head)
	}
	_ = t.Flush() // run reports a failing writer
	fmt.Fprintln(a.out, totals(int64(rows), sum))
	return nil
}

// totals are the last line of a list of counters.
func totals(count int64, sum *big.Int) string {
	if count == 1 {
		return fmt.Sprintf("1 counter, sum %v", sum)
	}
	return fmt.Sprintf("%d counters, sum %v", count, sum)
}

func (a *app) listJSON(list iter.Seq2[client.Counter, error], limit int) error {
	begun, more, sum := 0, false, new(big.Int)
	for counter, err := range list {
		if err != nil {
			return err
		}
		if limit > 0 && begun == limit {
			more = true
			break
		}
		line, err := marshal(counterToJSON(counter))
		if err != nil {
			return felix.Errorf(felix.Internal, "a counter cannot be shown: %v", err)
		}
		separator := ","
		if begun == 0 {
			separator = `{"counters":[`
		}
		begun++
		sum.Add(sum, big.NewInt(counter.Value))
		if _, err := fmt.Fprintf(a.out, "%s\n%s", separator, line); err != nil {
			return nil // run reports it; reading on is no use
		}
	}
	if begun == 0 {
		a.out.WriteString(`{"counters":[`)
	}
	fmt.Fprintf(a.out, "],\"more\":%v,\"count\":\"%d\",\"sum\":\"%v\"}\n", more, begun, sum)
	return nil
}
