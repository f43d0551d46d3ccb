package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
)

// ownerJSON is where one shard is in --json answers.
type ownerJSON struct {
	Number    int      `json:"number"`
	FirstSlot int      `json:"firstSlot"`
	LastSlot  int      `json:"lastSlot"`
	Owner     uint64   `json:"owner,string"`
	HTTPAddr  string   `json:"httpAddr"`
	RESPAddr  string   `json:"respAddr"`
	Nodes     []string `json:"nodes"`
}

// featureJSON is a feature in --json answers.
type featureJSON struct {
	Name              string   `json:"name"`
	Summary           string   `json:"summary"`
	Finalized         bool     `json:"finalized"`
	FinalizedAtMillis int64    `json:"finalizedAtMillis,string"`
	Lacking           []string `json:"lacking"`
}

func featureToJSON(f *felix.FeatureInfo) featureJSON {
	return featureJSON{f.Name, f.Summary, f.Finalized, f.FinalizedAtMillis, texts(f.Lacking)}
}

// texts are node ids as JSON has them.
func texts(nodes []uint64) []string {
	all := make([]string, len(nodes))
	for i, id := range nodes {
		all[i] = strconv.FormatUint(id, 10)
	}
	return all
}

func (a *app) topologyCommand() *cobra.Command {
	return leaf(&cobra.Command{
		Use:   "topology CACHE",
		Short: "Show which broker owns which keys of a cache",
		Long: `Shows which slots each shard of a cache has, and which broker owns it. The slot of a
key is the CRC16 of it, or of its {tag}, modulo 16384. Any broker serves any key.`,
		Example: "  felixctl topology limits",
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		info, err := c.Topology(cmd.Context(), s.tenant, s.namespace, args[0])
		if err != nil {
			return err
		}
		list := make([]ownerJSON, len(info.Shards))
		for i, o := range info.Shards {
			list[i] = ownerJSON{o.Number, o.FirstSlot, o.LastSlot, o.Owner, o.HTTPAddr, o.RESPAddr, texts(o.Nodes)}
		}
		return a.answer(struct {
			Tenant    string      `json:"tenant"`
			Namespace string      `json:"namespace"`
			Cache     string      `json:"cache"`
			Shards    []ownerJSON `json:"shards"`
		}{info.Tenant, info.Namespace, info.Cache, list}, func(w io.Writer) {
			t := table(w)
			fmt.Fprintln(t, "SHARD\tSLOTS\tOWNER\tHTTP\tREDIS\tREPLICAS")
			for _, o := range list {
				fmt.Fprintf(t, "%d\t%d-%d\t%s\t%s\t%s\t%s\n", o.Number, o.FirstSlot, o.LastSlot, nodeOrDash(o.Owner),
					orDash(o.HTTPAddr), orDash(o.RESPAddr), orDash(strings.Join(o.Nodes, ",")))
			}
			_ = t.Flush() // w keeps the error until run flushes it
		})
	})
}

func (a *app) featureCommands() *cobra.Command {
	return a.group(&cobra.Command{Use: "feature", Short: "Show the cluster's features, and turn them on for ever"},
		a.featureList(), a.featureFinalize())
}

func (a *app) featureList() *cobra.Command {
	return leaf(&cobra.Command{
		Use:     "ls",
		Short:   "List the features of the cluster",
		Example: "  felixctl feature ls",
	}, 0, 0, func(cmd *cobra.Command, _ []string) error {
		c, _, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		features, err := c.Features(cmd.Context())
		if err != nil {
			return err
		}
		list := make([]featureJSON, len(features))
		for i := range features {
			list[i] = featureToJSON(&features[i])
		}
		return a.answer(struct {
			Features []featureJSON `json:"features"`
		}{list}, func(w io.Writer) {
			t := table(w)
			fmt.Fprintln(t, "FEATURE\tFINALIZED\tNODES WITHOUT\tWHAT")
			for _, f := range list {
				when := "no"
				if f.Finalized {
					when = showTime(time.UnixMilli(f.FinalizedAtMillis))
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", printable(f.Name), when, orDash(strings.Join(f.Lacking, ",")), orDash(f.Summary))
			}
			_ = t.Flush() // w keeps the error until run flushes it
		})
	})
}

func (a *app) featureFinalize() *cobra.Command {
	return leaf(&cobra.Command{
		Use:   "finalize NAME",
		Short: "Turn a feature on for ever",
		Long: `Turns a feature on for ever: brokers whose build lacks it are refused from then on.
It is refused while a broker of the cluster lacks it. On a terminal it asks first;
elsewhere it needs --yes.`,
		Example: "  felixctl feature finalize lease_free_reads --yes",
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		c, _, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := a.confirm(cmd, fmt.Sprintf("Finalize %s for ever? Builds without it are refused then.", args[0])); err != nil {
			return err
		}
		feature, err := c.FeatureFinalize(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return a.answer(struct {
			Feature featureJSON `json:"feature"`
		}{featureToJSON(&feature)}, func(w io.Writer) { fmt.Fprintf(w, "finalized %s\n", printable(feature.Name)) })
	})
}
