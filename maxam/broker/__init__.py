"""The sans-IO broker: one value per topic, and what each subscription is owed of them."""
