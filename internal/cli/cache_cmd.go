package cli

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// cacheJSON is a cache in --json answers; the same names as in the HTTP API.
type cacheJSON struct {
	Tenant          string `json:"tenant"`
	Namespace       string `json:"namespace"`
	Cache           string `json:"cache"`
	Shards          int    `json:"shards"`
	Replication     int    `json:"replication"`
	Replicas        int    `json:"replicas"`
	Consistency     string `json:"consistency"`
	CreatedAtMillis int64  `json:"createdAtMillis,string"`
	// null where they are not known.
	Counters *int64 `json:"counters,string"`
	Values   *int64 `json:"values,string"`
	Keys     *int64 `json:"keys,string"`
}

func cacheToJSON(c felix.CacheInfo) cacheJSON {
	j := cacheJSON{
		Tenant: c.Tenant, Namespace: c.Namespace, Cache: c.Cache,
		Shards: c.Shards, Replication: c.Replication, Replicas: c.Replicas, Consistency: c.Consistency.String(),
		CreatedAtMillis: c.CreatedAtMillis,
	}
	if !c.CountsUnknown {
		j.Counters, j.Values, j.Keys = &c.Counts.Counters, &c.Counts.Values, &c.Counts.Keys
	}
	return j
}

// summary is a cache's settings in half a line.
func summary(c felix.CacheInfo) string {
	return fmt.Sprintf("%d shards, %s, replicas %d/%d", c.Shards, c.Consistency, c.Replicas, c.Replication)
}

func (a *app) cacheCommands() *cobra.Command {
	return a.group(&cobra.Command{Use: "cache", Short: "Create, show, change and delete caches, and the values in them"},
		a.cacheCreate(), a.cacheList(), a.cacheInfo(), a.cacheSet(), a.cacheRemove(),
		a.valuePut(), a.valueGet(), a.valueDelete(), a.valueWatch())
}

func (a *app) cacheCreate() *cobra.Command {
	var want felix.CacheSettings
	var consistency string
	c := leaf(&cobra.Command{
		Use:   "create NAME",
		Short: "Create a cache",
		Long: `Creates a cache. If it exists with the same settings this succeeds; with other
settings the exit status is 4. Shards and consistency cannot be changed later.`,
		Example: `  felixctl cache create limits
  felixctl cache create hits --shards 16 --consistency leader`,
	}, 1, 1, func(cmd *cobra.Command, args []string) (err error) {
		if want.Consistency, err = felix.ParseConsistency(consistency); err != nil {
			return err
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		info, created, warning, err := c.CacheCreate(cmd.Context(), s.tenant, s.namespace, args[0], want)
		if err != nil {
			return err
		}
		a.warn(warning)
		return a.answer(struct {
			Cache   cacheJSON `json:"cache"`
			Created bool      `json:"created"`
			Warning string    `json:"warning"`
		}{cacheToJSON(info), created, warning}, func(w io.Writer) {
			verb := "created"
			if !created {
				verb = "exists already:"
			}
			fmt.Fprintf(w, "%s %s: %s\n", verb, info.Scope, summary(info))
		})
	})
	c.Flags().IntVar(&want.Shards, "shards", felix.DefaultShards, fmt.Sprintf("`number` of shards the keys are spread over, 1 to %d", felix.MaxShardsPerCache))
	c.Flags().IntVar(&want.Replication, "replication", 0, fmt.Sprintf("`number` of replicas of each shard, 1 to %d (default: 3 where there are three brokers, otherwise 1)", felix.MaxReplication))
	c.Flags().StringVar(&consistency, "consistency", felix.Quorum.String(), "when a write is acknowledged: `quorum` (on disk on a majority of replicas) or leader (ordered by the owner; losing it can lose the last 100ms)")
	return c
}

func (a *app) cacheList() *cobra.Command {
	var all bool
	c := leaf(&cobra.Command{
		Use:     "ls",
		Short:   "List the caches of the namespace",
		Example: "  felixctl cache ls\n  felixctl cache ls --all --json",
	}, 0, 0, func(cmd *cobra.Command, _ []string) error {
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		if all {
			s.tenant, s.namespace = client.All, client.All
		}
		infos, err := c.CacheList(cmd.Context(), s.tenant, s.namespace)
		if err != nil {
			return err
		}
		list := make([]cacheJSON, len(infos))
		for i := range infos {
			list[i] = cacheToJSON(infos[i])
		}
		return a.answer(struct {
			Caches []cacheJSON `json:"caches"`
		}{list}, func(w io.Writer) {
			t := table(w)
			fmt.Fprintln(t, "CACHE\tSHARDS\tCONSISTENCY\tREPLICAS\tCOUNTERS\tVALUES")
			for _, info := range infos {
				name := info.Cache
				if all {
					name = info.Scope.String()
				}
				fmt.Fprintf(t, "%s\t%d\t%s\t%d/%d\t%s\t%s\n", printable(name), info.Shards, info.Consistency,
					info.Replicas, info.Replication, count(info, info.Counts.Counters), count(info, info.Counts.Values))
			}
			_ = t.Flush() // w keeps the error until run flushes it
		})
	})
	c.Flags().BoolVar(&all, "all", false, "of all tenants and namespaces, shown as tenant/namespace/cache")
	return c
}

func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }

func (a *app) cacheInfo() *cobra.Command {
	return leaf(&cobra.Command{
		Use:     "info NAME",
		Short:   "Show a cache",
		Example: "  felixctl cache info limits",
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		info, err := c.CacheGet(cmd.Context(), s.tenant, s.namespace, args[0])
		if err != nil {
			return err
		}
		return a.answer(cacheToJSON(info), func(w io.Writer) { describe(w, info) })
	})
}

func describe(w io.Writer, info felix.CacheInfo) {
	t := table(w)
	fmt.Fprintf(t, "cache\t%s\n", printable(info.Scope.String()))
	fmt.Fprintf(t, "shards\t%d\n", info.Shards)
	fmt.Fprintf(t, "consistency\t%s\n", info.Consistency)
	fmt.Fprintf(t, "replicas\t%d/%d\n", info.Replicas, info.Replication)
	fmt.Fprintf(t, "created\t%s\n", showTime(time.UnixMilli(info.CreatedAtMillis)))
	fmt.Fprintf(t, "counters\t%s\n", count(info, info.Counts.Counters))
	fmt.Fprintf(t, "values\t%s\n", count(info, info.Counts.Values))
	fmt.Fprintf(t, "keys\t%s\n", count(info, info.Counts.Keys))
	_ = t.Flush() // w keeps the error until run flushes it
}

// count shows one of a cache's counts, or that they are not known.
func count(info felix.CacheInfo, n int64) string {
	if info.CountsUnknown {
		return orDash("")
	}
	return strconv.FormatInt(n, 10)
}

func showTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func (a *app) cacheSet() *cobra.Command {
	var replication int
	c := leaf(&cobra.Command{
		Use:     "set NAME --replication N",
		Short:   "Change how many replicas a cache's shards have, online",
		Example: "  felixctl cache set limits --replication 3",
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("replication") {
			return felix.Errorf(felix.InvalidArgument, "nothing to change: say --replication N")
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		info, warning, err := c.CacheSetReplication(cmd.Context(), s.tenant, s.namespace, args[0], replication)
		if err != nil {
			return err
		}
		a.warn(warning)
		return a.answer(struct {
			Cache   cacheJSON `json:"cache"`
			Warning string    `json:"warning"`
		}{cacheToJSON(info), warning}, func(w io.Writer) {
			fmt.Fprintf(w, "changed %s: %s\n", info.Scope, summary(info))
		})
	})
	c.Flags().IntVar(&replication, "replication", 0, fmt.Sprintf("`number` of replicas of each shard, 1 to %d", felix.MaxReplication))
	return c
}

func (a *app) cacheRemove() *cobra.Command {
	return leaf(&cobra.Command{
		Use:   "rm NAME",
		Short: "Delete a cache and everything in it",
		Long: `Deletes a cache with all its counters and values, for good. On a terminal it asks
first; elsewhere it needs --yes.`,
		Example: "  felixctl cache rm old --yes",
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		scope := felix.Scope{Tenant: s.tenant, Namespace: s.namespace, Cache: args[0]}
		if err := scope.Validate(); err != nil {
			return err // before a question about it
		}
		if err := a.confirm(cmd, fmt.Sprintf("Delete cache %s and everything in it?", scope)); err != nil {
			return err
		}
		if err := c.CacheDelete(cmd.Context(), s.tenant, s.namespace, args[0]); err != nil {
			return err
		}
		return a.answer(struct {
			Deleted bool   `json:"deleted"`
			Cache   string `json:"cache"`
		}{true, args[0]}, func(w io.Writer) { fmt.Fprintf(w, "deleted %s\n", scope) })
	})
}
