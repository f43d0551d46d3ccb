package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
)

// namedContext is a set of settings under a name. What is empty is not set.
type namedContext struct {
	Brokers   []string `json:"brokers,omitempty"`
	Tenant    string   `json:"tenant,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
}

// contextFile is the file of contexts.
type contextFile struct {
	// Current is the context in use, a key of Contexts, or empty.
	Current  string                  `json:"current,omitempty"`
	Contexts map[string]namedContext `json:"contexts"`
}

// contextPath is where the file is, or empty if there is no place for it.
func (a *app) contextPath() string {
	if path := a.env[envContexts]; path != "" {
		return path
	}
	dir := a.env["XDG_CONFIG_HOME"]
	if !filepath.IsAbs(dir) { // so the XDG specification wants it
		if dir = a.env["HOME"]; dir == "" {
			return ""
		}
		dir = filepath.Join(dir, ".config")
	}
	return filepath.Join(dir, "felix", "contexts.json")
}

// loadContexts reads the file; one that does not exist is empty.
func (a *app) loadContexts() (contextFile, error) {
	file := contextFile{Contexts: map[string]namedContext{}}
	path := a.contextPath()
	if path == "" {
		return file, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil
	}
	if err != nil {
		return file, felix.Errorf(felix.Internal, "the contexts cannot be read: %v", err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err = dec.Decode(&file)
	if err == nil {
		if _, more := dec.Token(); more != io.EOF {
			err = errors.New("something follows the JSON object")
		}
	}
	if err != nil {
		return file, felix.Errorf(felix.InvalidArgument, "the contexts in %s cannot be understood (%v): repair or remove the file", path, err)
	}
	if file.Contexts == nil {
		file.Contexts = map[string]namedContext{}
	}
	return file, nil
}

// saveContexts replaces the file in one step: a reader sees the old or the new
// one, also after a crash.
func (a *app) saveContexts(file contextFile) (err error) {
	path := a.contextPath()
	if path == "" {
		return felix.Errorf(felix.InvalidArgument, "there is no place for contexts: set HOME, XDG_CONFIG_HOME or %s", envContexts)
	}
	defer func() {
		if err != nil {
			err = felix.Errorf(felix.Internal, "the contexts cannot be written: %v", err)
		}
	}()
	data, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".contexts-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name()) // the first error is the one to tell
		}
	}()
	_, err = tmp.Write(append(data, '\n'))
	if err == nil {
		err = tmp.Sync()
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// chosenContext is the context that settings come from: --context, then
// FELIX_CONTEXT, then the one in use; none is empty.
func (a *app) chosenContext(cmd *cobra.Command) (namedContext, error) {
	file, err := a.loadContexts()
	if err != nil {
		return namedContext{}, err
	}
	name, err := a.pick(cmd, "context", a.flags.context, envContext, file.Current, "")
	if err != nil || name == "" {
		return namedContext{}, err
	}
	return file.find(name)
}

// find is invalid_argument for a name that is not there.
func (f contextFile) find(name string) (namedContext, error) {
	c, ok := f.Contexts[name]
	if !ok {
		return c, felix.Errorf(felix.InvalidArgument, "there is no context %q: `felixctl context ls` shows those there are", name)
	}
	return c, nil
}
