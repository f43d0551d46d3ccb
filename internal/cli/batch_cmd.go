package cli

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

func (a *app) batchCommand() *cobra.Command {
	encoding := textKeys
	var atomic bool
	var file string
	c := leaf(&cobra.Command{
		Use:   "batch CACHE",
		Short: "Do up to 10,000 things in one request, read from standard input or a file",
		Long: `Reads one item a line, and sends all of them in one request:

  add KEY [DELTA] [min=N] [max=N] [saturate] [ttl=DURATION]
  set KEY NUMBER [ttl=DURATION]          get KEY           del KEY
  put KEY VALUE [ttl=DURATION] [if-absent] [if-version=N]
  value KEY                              del-value KEY [if-version=N]

The first four work on counters, the others on cache values. Words are separated by
spaces; one with spaces in it stands in double quotes, with escapes as in Go: "a b\n".
Empty lines and those that begin with # are left out.

A line is printed for each item, in order: the sum or number, the value, "stored",
"deleted", "none", or why it was not done. With --atomic all is done at one moment, or
nothing: all keys must then share a shard, as those with the same {tag} do, and if one
item fails, or does not meet its condition or bounds, the others are "aborted".

Exit status: 0 if all was done; that of the first item with an error; 4 if a condition
or bound was not met. The batch is sent once, as an add is.`,
		Example: `  felixctl batch limits < items
  printf 'add {u:42}:seats 1 max=5\nput {u:42}:last now\n' | felixctl batch limits --atomic`,
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		items, err := a.readItems(file, encoding)
		if err != nil {
			return err
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		results, applied, err := c.Batch(cmd.Context(), s.tenant, s.namespace, args[0], atomic, items...)
		if err != nil {
			return err
		}
		if err := a.showBatch(items, results, atomic, applied); err != nil {
			return err
		}
		return batchOutcome(items, results)
	})
	c.Flags().BoolVar(&atomic, "atomic", false, "all of it or nothing")
	c.Flags().StringVar(&file, "file", "-", "read the items from this `file`; - is standard input")
	c.Flags().Var(&encoding, "key-encoding", "how keys are given: text, escaped, hex or base64")
	return c
}

// maxItemBytes bounds a line: the largest value, with every byte escaped.
const maxItemBytes = 4*felix.MaxValueBytes + 8*felix.MaxKeyBytes

// readItems reads the items of a file. The error is invalid_argument, or says why
// it cannot be read.
func (a *app) readItems(file string, encoding keyEncoding) (items []client.Item, err error) {
	in := a.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, felix.Errorf(felix.InvalidArgument, "the items cannot be read: %v", err)
		}
		defer f.Close()
		in = f
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxItemBytes)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		words, err := splitWords(line)
		if err == nil {
			var item client.Item
			item, err = parseItem(words, encoding)
			items = append(items, item)
		}
		if err != nil {
			return nil, felix.Errorf(felix.InvalidArgument, "line %d: %s", n, felix.AsError(err).Message)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, felix.Errorf(felix.InvalidArgument, "the items cannot be read: %v", err)
	}
	if len(items) == 0 {
		return nil, felix.Errorf(felix.InvalidArgument, "there are no items: give one a line, such as `add KEY 1`")
	}
	return items, nil
}

// splitWords splits a line at spaces, but not within double quotes.
func splitWords(line string) (words []string, err error) {
	for line = strings.TrimLeft(line, " \t"); line != ""; line = strings.TrimLeft(line, " \t") {
		if line[0] != '"' {
			end := strings.IndexAny(line, " \t")
			if end < 0 {
				end = len(line)
			}
			words, line = append(words, line[:end]), line[end:]
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return nil, felix.Errorf(felix.InvalidArgument, "the word that begins with %.20q does not end, or has escapes that are none", line)
		}
		word, err := strconv.Unquote(quoted)
		if line = line[len(quoted):]; err != nil || line != "" && line[0] != ' ' && line[0] != '\t' {
			return nil, felix.Errorf(felix.InvalidArgument, "a space is missing after %s", quoted)
		}
		words = append(words, word)
	}
	return words, nil
}

// itemForms are the kinds of items by their word: how many words follow the key,
// of which the last may be missing, and which options.
var itemForms = map[string]struct {
	kind        client.ItemKind
	least, most int
	options     string
}{
	"add": {client.ItemAdd, 0, 1, "min= max= saturate ttl="}, "set": {client.ItemSet, 1, 1, "ttl="},
	"get": {client.ItemGet, 0, 0, ""}, "del": {client.ItemDelete, 0, 0, ""},
	"put": {client.ItemPutValue, 1, 1, "ttl= if-absent if-version="}, "value": {client.ItemGetValue, 0, 0, ""},
	"del-value": {client.ItemDeleteValue, 0, 0, "if-version="},
}

// parseItem reads the words of a line. The error is invalid_argument.
func parseItem(words []string, encoding keyEncoding) (item client.Item, err error) {
	form, known := itemForms[words[0]]
	if !known {
		return item, felix.Errorf(felix.InvalidArgument, "%.30q is none of add, set, get, del, put, value, del-value", words[0])
	}
	if len(words) < 2+form.least {
		return item, felix.Errorf(felix.InvalidArgument, "%s wants %d words", words[0], 1+form.least)
	}
	item = client.Item{Kind: form.kind, Number: 1}
	if item.Key, err = encoding.decode(words[1]); err != nil {
		return item, err
	}
	rest := words[2:]
	if form.most > 0 && len(rest) > 0 && (form.least > 0 || !isOption(rest[0], form.options)) {
		if form.kind == client.ItemPutValue {
			item.Value = []byte(rest[0])
		} else if item.Number, err = parseNumber("number", rest[0]); err != nil {
			return item, err
		}
		rest = rest[1:]
	}
	for _, word := range rest {
		if !isOption(word, form.options) {
			return item, felix.Errorf(felix.InvalidArgument, "%s has no option %.30q", words[0], word)
		}
		if err := itemOption(&item, word); err != nil {
			return item, err
		}
	}
	return item, nil
}

func isOption(word, options string) bool {
	name, _, given := strings.Cut(word, "=")
	if given {
		name += "="
	}
	for _, option := range strings.Fields(options) {
		if option == name {
			return true
		}
	}
	return false
}

// itemOption sets an option that the item's kind has.
func itemOption(item *client.Item, word string) (err error) {
	name, value, _ := strings.Cut(word, "=")
	if item.Bounds == nil && (name == "min" || name == "max" || name == "saturate") {
		item.Bounds = &felix.Bounds{Min: math.MinInt64, Max: math.MaxInt64}
	}
	switch name {
	case "min":
		item.Bounds.Min, err = parseNumber(name, value)
	case "max":
		item.Bounds.Max, err = parseNumber(name, value)
	case "saturate":
		item.Bounds.Saturate = true
	case "if-absent":
		item.IfAbsent = true
	case "if-version":
		item.IfVersion, err = strconv.ParseUint(value, 10, 64)
	case "ttl":
		if item.ExpiresIn, err = time.ParseDuration(value); err == nil && item.ExpiresIn < time.Millisecond {
			err = felix.Errorf(felix.InvalidArgument, "a ttl is at least 1ms")
		}
	}
	if err != nil {
		return felix.Errorf(felix.InvalidArgument, "%.60q: give a number, or a duration such as 90s", word)
	}
	return nil
}

// resultJSON is a result in --json answers; the names are the HTTP API's.
type resultJSON struct {
	Error           *itemErrorJSON `json:"error,omitempty"`
	Applied         bool           `json:"applied"`
	Aborted         bool           `json:"aborted"`
	Found           bool           `json:"found"`
	Counter         *int64         `json:"counter,omitempty,string"`
	Value           *string        `json:"value,omitempty"`
	ValueBytes      string         `json:"valueBytes,omitempty"`
	ExpiresAtMillis int64          `json:"expiresAtMillis,string"`
	Version         uint64         `json:"version,string"`
}

type itemErrorJSON struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func resultToJSON(item *client.Item, r *client.ItemResult) resultJSON {
	if r.Err != nil {
		return resultJSON{Error: &itemErrorJSON{r.Err.Code.String(), r.Err.Message}}
	}
	j := resultJSON{Applied: r.Applied, Aborted: r.Aborted, Found: r.Found, Version: r.Version}
	if !r.ExpiresAt.IsZero() {
		j.ExpiresAtMillis = r.ExpiresAt.UnixMilli()
	}
	switch {
	case item.Kind <= client.ItemGet && (r.Found || r.Applied):
		j.Counter = &r.Counter
	case item.Kind == client.ItemGetValue && r.Found && utf8.Valid(r.Value):
		text := string(r.Value)
		j.Value = &text
	case item.Kind == client.ItemGetValue && r.Found:
		j.ValueBytes = base64.StdEncoding.EncodeToString(r.Value)
	}
	return j
}

// showBatch prints the results.
func (a *app) showBatch(items []client.Item, results []client.ItemResult, atomic, applied bool) error {
	all := struct {
		Results []resultJSON `json:"results"`
		Applied *bool        `json:"applied,omitempty"`
	}{Results: make([]resultJSON, len(results))}
	for i := range results {
		all.Results[i] = resultToJSON(&items[i], &results[i])
	}
	if atomic {
		all.Applied = &applied
	}
	return a.answer(all, func(w io.Writer) {
		for i := range results {
			fmt.Fprintln(w, resultText(&items[i], &results[i]))
		}
	})
}

// resultText is a result in one line.
func resultText(item *client.Item, r *client.ItemResult) string {
	gets := item.Kind == client.ItemGet || item.Kind == client.ItemGetValue
	switch {
	case r.Err != nil:
		return printable(r.Err.Error())
	case r.Aborted:
		return "aborted"
	case unmet(item, r) && r.Found && item.Kind == client.ItemAdd:
		return fmt.Sprintf("not applied: it is %d", r.Counter)
	case unmet(item, r) && r.Found:
		return fmt.Sprintf("not applied: it has version %d", r.Version)
	case unmet(item, r):
		return "not applied: there is none"
	case gets && !r.Found || !gets && !r.Applied:
		return "none"
	case item.Kind == client.ItemGetValue:
		return printable(string(r.Value))
	case item.Kind == client.ItemPutValue:
		return "stored"
	case item.Kind == client.ItemDelete || item.Kind == client.ItemDeleteValue:
		return "deleted"
	}
	return strconv.FormatInt(r.Counter, 10)
}

// unmet says whether an item was not applied because of its condition or bounds.
func unmet(item *client.Item, r *client.ItemResult) bool {
	switch {
	case r.Err != nil || r.Applied || r.Aborted:
		return false
	case item.Kind == client.ItemDeleteValue:
		return item.IfVersion != 0
	}
	return item.Kind == client.ItemAdd || item.Kind == client.ItemPutValue
}

// batchOutcome is the error of a batch some of whose items were not done.
func batchOutcome(items []client.Item, results []client.ItemResult) error {
	failed, refused := 0, 0
	var first *felix.Error
	for i := range results {
		switch r := &results[i]; {
		case r.Err != nil:
			if failed++; first == nil {
				first = r.Err
			}
		case unmet(&items[i], r):
			refused++
		}
	}
	switch {
	case first != nil:
		return felix.Errorf(first.Code, "%d of %d items failed; the first: %s", failed, len(items), first.Message)
	case refused > 0:
		return felix.Errorf(felix.OutOfRange, "%d of %d items did not meet their condition or bounds", refused, len(items))
	}
	return nil
}
