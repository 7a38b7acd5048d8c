"""All tests, in folders by what they need, such as nothing, a process or a network."""
