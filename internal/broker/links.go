package broker

// openLinks starts to speak with other brokers, where there is a listener for
// them.
func (b *Broker) openLinks() error { return nil }
