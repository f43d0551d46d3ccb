package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
)

// The environment variables, which beat the context and yield to flags.
const (
	envBrokers   = "FELIX_BROKERS"
	envTenant    = "FELIX_AUTH_TENANT"
	envNamespace = "FELIX_NAMESPACE"
	envContext   = "FELIX_CONTEXT"
	envTimeout   = "FELIX_TIMEOUT"
	// envContexts is not named as the others are: FELIX_CONFIG is the
	// broker's config file.
	envContexts = "FELIXCTL_CONFIG"
)

// globalFlags are the flags of every command, as given.
type globalFlags struct {
	brokers, tenant, namespace, context string
	timeout                             time.Duration
	json, yes                           bool
}

func (a *app) addGlobalFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.SortFlags = false
	f.StringVar(&a.flags.brokers, "brokers", "", "HTTP addresses of brokers, `host:port,…`; port 7380 if left out; https:// before it for TLS (env "+envBrokers+"; default "+client.DefaultBroker+")")
	f.StringVar(&a.flags.tenant, "tenant", "", "`name` of the tenant (env "+envTenant+"; default \""+felix.DefaultTenant+"\")")
	f.StringVarP(&a.flags.namespace, "namespace", "n", "", "`name` of the namespace (env "+envNamespace+"; default \""+felix.DefaultNamespace+"\")")
	f.StringVar(&a.flags.context, "context", "", "`name` of the context to take what is not given from; see felixctl context (env "+envContext+"; default: the one in use)")
	f.DurationVar(&a.flags.timeout, "timeout", 0, "how long to wait for an answer, a `duration` such as 500ms or 3s (env "+envTimeout+"; default "+client.DefaultTimeout.String()+")")
	f.BoolVar(&a.flags.json, "json", false, "print one JSON object; errors too, on standard error; 64-bit numbers are strings")
	f.BoolVarP(&a.flags.yes, "yes", "y", false, "do not ask before deleting; needed where standard input is no terminal")
}

// settings are what a command works with once flags, environment and context
// have been weighed.
type settings struct {
	brokers           []string
	tenant, namespace string
	timeout           time.Duration
}

// settings weighs: a flag beats the environment, which beats the context, which
// beats the default. Errors are invalid_argument.
func (a *app) settings(cmd *cobra.Command) (settings, error) {
	chosen, err := a.chosenContext(cmd)
	if err != nil {
		return settings{}, err
	}
	s := settings{timeout: client.DefaultTimeout}
	if s.tenant, err = a.pick(cmd, "tenant", a.flags.tenant, envTenant, chosen.Tenant, felix.DefaultTenant); err != nil {
		return settings{}, err
	}
	if s.namespace, err = a.pick(cmd, "namespace", a.flags.namespace, envNamespace, chosen.Namespace, felix.DefaultNamespace); err != nil {
		return settings{}, err
	}
	brokers, err := a.pick(cmd, "brokers", a.flags.brokers, envBrokers, strings.Join(chosen.Brokers, ","), client.DefaultBroker)
	if err != nil {
		return settings{}, err
	}
	if s.brokers, err = splitBrokers(brokers); err != nil {
		return settings{}, err
	}
	if value := a.env[envTimeout]; value != "" {
		if s.timeout, err = time.ParseDuration(value); err != nil {
			return settings{}, felix.Errorf(felix.InvalidArgument, "%s is %q: give a duration such as 500ms or 3s", envTimeout, value)
		}
	}
	if cmd.Flags().Changed("timeout") {
		s.timeout = a.flags.timeout
	}
	if s.timeout <= 0 {
		return settings{}, felix.Errorf(felix.InvalidArgument, "the timeout is %v: it must be more than 0", s.timeout)
	}
	return s, nil
}

// pick weighs one setting. A flag given as empty is refused: it is most often a
// shell variable that is not set.
func (a *app) pick(cmd *cobra.Command, name, flag, env, context, fallback string) (string, error) {
	switch {
	case cmd.Flags().Changed(name):
		if flag == "" {
			return "", felix.Errorf(felix.InvalidArgument, "--%s is empty: leave it out for the default", name)
		}
		return flag, nil
	case a.env[env] != "":
		return a.env[env], nil
	case context != "":
		return context, nil
	}
	return fallback, nil
}

// splitBrokers reads a list of addresses. The error is invalid_argument.
func splitBrokers(list string) ([]string, error) {
	var brokers []string
	for address := range strings.SplitSeq(list, ",") {
		if address = strings.TrimSpace(address); address != "" {
			brokers = append(brokers, address)
		}
	}
	if len(brokers) == 0 {
		return nil, felix.Errorf(felix.InvalidArgument, "the list of brokers is empty: give host:port,…")
	}
	return brokers, nil
}

// connect makes a client from the settings. The caller closes it.
func (a *app) connect(cmd *cobra.Command) (*client.Client, settings, error) {
	s, err := a.settings(cmd)
	if err != nil {
		return nil, s, err
	}
	c, err := client.New(client.Options{Brokers: s.brokers, Timeout: s.timeout})
	return c, s, err
}
