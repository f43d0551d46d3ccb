package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// nodeJSON is a broker in --json answers; the same names as in the HTTP API.
type nodeJSON struct {
	ID                uint64   `json:"id,string"`
	State             string   `json:"state"`
	Up                bool     `json:"up"`
	Here              bool     `json:"here"`
	StoreID           string   `json:"storeId"`
	Version           string   `json:"version"`
	Features          []string `json:"features"`
	PeerAddr          string   `json:"peerAddr"`
	HTTPAddr          string   `json:"httpAddr"`
	RESPAddr          string   `json:"respAddr"`
	ClockOffsetMillis int64    `json:"clockOffsetMillis,string"`
	Ineligible        string   `json:"ineligible"`
	Waiting           string   `json:"waiting"`
	Replicas          int      `json:"replicas"`
	Owned             int      `json:"owned"`
}

func nodeToJSON(n *felix.NodeInfo) nodeJSON {
	return nodeJSON{
		ID: n.ID, State: string(n.State), Up: n.Up, Here: n.Here, StoreID: n.StoreID, Version: n.Version,
		Features: append([]string{}, n.Features...), // [] and not null
		PeerAddr: n.PeerAddr, HTTPAddr: n.HTTPAddr, RESPAddr: n.RESPAddr,
		ClockOffsetMillis: n.ClockOffset.Milliseconds(), Ineligible: n.Ineligible, Waiting: n.Waiting,
		Replicas: n.Replicas, Owned: n.Owned,
	}
}

func (a *app) nodeCommands() *cobra.Command {
	return a.group(&cobra.Command{Use: "node", Short: "Show, drain and remove the brokers of the cluster"},
		a.nodeList(), a.nodeInfo(), a.nodeDrain(), a.nodeRemove())
}

// parseNode reads the id of a node. The error is invalid_argument.
func parseNode(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 {
		return 0, felix.Errorf(felix.InvalidArgument, "%q is not the id of a node: give a number from 1, as felixctl node ls shows", text)
	}
	return id, nil
}

func (a *app) nodeList() *cobra.Command {
	var all bool
	c := leaf(&cobra.Command{
		Use:     "ls",
		Short:   "List the brokers of the cluster",
		Example: "  felixctl node ls\n  felixctl node ls --removed --json",
	}, 0, 0, func(cmd *cobra.Command, _ []string) error {
		c, _, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		nodes, err := c.Nodes(cmd.Context())
		if err != nil {
			return err
		}
		list := []nodeJSON{}
		for i := range nodes {
			if all || nodes[i].State != felix.NodeRemoved {
				list = append(list, nodeToJSON(&nodes[i]))
			}
		}
		return a.answer(struct {
			Nodes []nodeJSON `json:"nodes"`
		}{list}, func(w io.Writer) {
			t := table(w)
			fmt.Fprintln(t, "NODE\tSTATE\tUP\tOWNED\tREPLICAS\tHTTP\tVERSION\tNOTE")
			for _, n := range list {
				fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", n.ID, printable(n.State), yesNo(n.Up), n.Owned, n.Replicas,
					orDash(n.HTTPAddr), orDash(n.Version), orDash(n.note()))
			}
			_ = t.Flush() // w keeps the error until run flushes it
		})
	})
	c.Flags().BoolVar(&all, "removed", false, "also those that were removed")
	return c
}

// note is what is not as it should be.
func (n *nodeJSON) note() string {
	var notes []string
	for _, s := range []string{n.Ineligible, n.Waiting} {
		if s != "" {
			notes = append(notes, s)
		}
	}
	return strings.Join(notes, "; ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a *app) nodeInfo() *cobra.Command {
	return leaf(&cobra.Command{
		Use:     "info ID",
		Short:   "Show a broker",
		Example: "  felixctl node info 2",
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		id, err := parseNode(args[0])
		if err != nil {
			return err
		}
		c, _, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		node, err := findNode(cmd.Context(), c, id)
		if err != nil {
			return err
		}
		n := nodeToJSON(&node)
		return a.answer(n, func(w io.Writer) { n.describe(w) })
	})
}

func findNode(ctx context.Context, c *client.Client, id uint64) (felix.NodeInfo, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return felix.NodeInfo{}, err
	}
	for _, n := range nodes {
		if n.ID == id {
			return n, nil
		}
	}
	return felix.NodeInfo{}, felix.Errorf(felix.NodeNotFound, "there is no node %d; felixctl node ls shows those that there are", id)
}

func (n *nodeJSON) describe(w io.Writer) {
	t := table(w)
	for _, row := range [][2]string{
		{"node", strconv.FormatUint(n.ID, 10)}, {"state", n.State}, {"up", yesNo(n.Up)}, {"version", n.Version},
		{"features", strings.Join(n.Features, ",")}, {"store id", n.StoreID},
		{"peers", n.PeerAddr}, {"http", n.HTTPAddr}, {"redis", n.RESPAddr},
		{"clock offset", (time.Duration(n.ClockOffsetMillis) * time.Millisecond).String()},
		{"owns none because", n.Ineligible}, {"waits for", n.Waiting},
		{"replicas", strconv.Itoa(n.Replicas)}, {"owned", strconv.Itoa(n.Owned)},
	} {
		fmt.Fprintf(t, "%s\t%s\n", row[0], orDash(row[1]))
	}
	_ = t.Flush() // w keeps the error until run flushes it
}

func (a *app) nodeDrain() *cobra.Command {
	var undo bool
	var wait time.Duration
	c := leaf(&cobra.Command{
		Use:   "drain ID",
		Short: "Move all replicas and ownership away from a broker, online",
		Long: `Moves all replicas and ownership away from a broker, which stays a member of the
cluster. It answers when that is begun; the cluster goes on by itself.`,
		Example: "  felixctl node drain 2 --wait 10m\n  felixctl node drain 2 --undo",
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		id, err := parseNode(args[0])
		if err != nil {
			return err
		}
		c, _, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		node, err := c.NodeDrain(cmd.Context(), id, !undo)
		if err != nil {
			return err
		}
		if !undo {
			if node, err = awaitNode(cmd.Context(), c, node, wait, drained); err != nil {
				return err
			}
		}
		return a.answerNode(node)
	})
	c.Flags().BoolVar(&undo, "undo", false, "let the broker have replicas again")
	addWait(c, &wait)
	return c
}

func addWait(c *cobra.Command, wait *time.Duration) {
	c.Flags().DurationVar(wait, "wait", 0, "how long to wait until it is done, a `duration` such as 10m (default: not at all)")
}

func (a *app) nodeRemove() *cobra.Command {
	var wait time.Duration
	c := leaf(&cobra.Command{
		Use:   "rm ID",
		Short: "Take a broker out of the cluster for ever",
		Long: `Moves everything away from a broker and takes it out of the cluster. Its id is
never used again, and its data directory is refused from then on. It answers when
that is begun; the cluster goes on by itself. On a terminal it asks first;
elsewhere it needs --yes.`,
		Example: "  felixctl node rm 2 --wait 10m --yes",
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		id, err := parseNode(args[0])
		if err != nil {
			return err
		}
		c, _, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := a.confirm(cmd, fmt.Sprintf("Remove node %d from the cluster for ever?", id)); err != nil {
			return err
		}
		node, err := c.NodeRemove(cmd.Context(), id)
		if err != nil {
			return err
		}
		if node, err = awaitNode(cmd.Context(), c, node, wait, removed); err != nil {
			return err
		}
		return a.answerNode(node)
	})
	addWait(c, &wait)
	return c
}

func drained(n *felix.NodeInfo) bool { return n.Waiting == "" }
func removed(n *felix.NodeInfo) bool { return n.State == felix.NodeRemoved }

// nodePoll is how often a node is looked at that is waited for.
const nodePoll = 250 * time.Millisecond

// awaitNode looks at a node until it is done, if the user wants to wait. A broker
// that does not answer in between is asked again; the error is unavailable when
// the time is over.
func awaitNode(ctx context.Context, c *client.Client, node felix.NodeInfo, wait time.Duration, done func(*felix.NodeInfo) bool) (felix.NodeInfo, error) {
	if wait <= 0 || done(&node) {
		return node, nil
	}
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	poll := time.NewTicker(nodePoll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return node, felix.Errorf(felix.Unavailable, "interrupted while waiting; the cluster goes on by itself")
		case <-deadline.C:
			return node, felix.Errorf(felix.Unavailable, "node %d is still %s after %v, and waits for: %s; the cluster goes on by itself",
				node.ID, node.State, wait, orDash(node.Waiting))
		case <-poll.C:
		}
		now, err := findNode(ctx, c, node.ID)
		switch {
		case err == nil && done(&now):
			return now, nil
		case err == nil:
			node = now
		case felix.AsError(err).Code != felix.Unavailable:
			return node, err
		}
	}
}

// answerNode says what has become of a node.
func (a *app) answerNode(node felix.NodeInfo) error {
	return a.answer(struct {
		Node nodeJSON `json:"node"`
	}{nodeToJSON(&node)}, func(w io.Writer) {
		fmt.Fprintf(w, "node %d is %s", node.ID, printable(string(node.State)))
		if node.Waiting != "" {
			fmt.Fprintf(w, ", and waits for: %s", printable(node.Waiting))
		}
		fmt.Fprintln(w)
	})
}
