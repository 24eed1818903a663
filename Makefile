# Every target can be run again after an interruption; "make help" lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# Ansible refuses to run in a locale that is not UTF-8.
export LC_ALL := C.UTF-8
export LANG := C.UTF-8
export PATH := $(CURDIR)/.venv/bin:$(PATH)

PYTHON := $(CURDIR)/.venv/bin/python
PAIR := $(PYTHON) simulated_pair/pair.py
PLAY := ansible-playbook -i inventory/simulated site.yml -l spark_pair
# What the rank files of the simulated pair were cut from: nothing in them says it, their owner does.
STATED := -e weights_adopt_checkpoint=45ee5d0f -e weights_adopt_overlay=none

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## system packages (by apt, only what is missing) and .venv
	@simulated_pair/install-packages
	@simulated_pair/make-venv

.PHONY: pair
pair: setup ## the simulated pair: image, both machines, Hikari serving
	@$(PAIR) start

.PHONY: reset
reset: setup ## bring the simulated pair back to "Hikari serves", faults cleared
	@$(PAIR) reset

.PHONY: destroy
destroy: ## remove the simulated pairs of this checkout
	@simulated_pair/destroy

.PHONY: demo
demo: pair ## the whole journey on the simulated pair: weights adopted, cut-over to DeepSeek, status
	@echo; echo '$$ $(PLAY) --tags tools,adopt $(STATED)'
	@$(PLAY) --tags tools,adopt $(STATED)
	@echo; echo '$$ $(PLAY)'
	@$(PLAY)
	@echo; echo '$$ $(PLAY) --tags status'
	@$(PLAY) --tags status
	@echo
	@echo 'DeepSeek serves on the simulated pair. Next:'
	@echo '  source .venv/bin/activate'
	@echo '  $(PLAY) --tags rollback    # back to Hikari'
	@echo '  simulated_pair/pair.py status                                           # machines and addresses'
	@echo '  make inventory                                                          # describe your own two Sparks'
	@echo '  make destroy                                                            # remove the simulated pair'

.PHONY: inventory
inventory: setup ## look at your own two Sparks and write inventory/local (ARGS="--head LOGIN@ADDRESS --worker LOGIN@ADDRESS")
	@$(PYTHON) -m spark_pair.inventory $(ARGS)

.PHONY: lint
lint: setup ## ruff, mypy, yamllint, ansible-lint, shellcheck
	ruff check .
	ruff format --check .
	mypy spark_pair tests/unit simulated_pair/*.py inventory/simulated/addresses.py docs/make_variables.py docs/make_plan_table.py docs/make_fault_table.py
	mypy --allow-subclassing-any action_plugins/*.py filter_plugins/*.py library/*.py
	MYPYPATH=simulated_pair/standins/common:simulated_pair/standins/engine mypy simulated_pair/standins/*/*/*.py
	MYPYPATH=molecule mypy --cache-dir .mypy_cache/stories molecule/stories molecule/conftest.py benchmarks/*.py
	yamllint --strict .
	ANSIBLE_INVENTORY=inventory/simulated ansible-lint
	git ls-files -z --cached --others --exclude-standard -- ':!*.j2' \
	    | while IFS= read -r -d '' file; do \
	          if [ -f "$$file" ] && head -n 1 "$$file" | grep -qaE '^#!.*/(env )?(ba)?sh$$'; then printf '%s\0' "$$file"; fi; \
	      done \
	    | xargs -0 -r shellcheck --external-sources --source-path=SCRIPTDIR --source-path=SCRIPTDIR/..

.PHONY: unit
unit: setup ## unit tests, no machines needed (ARGS="-k word": some of them)
	pytest tests/unit -n auto $(ARGS)

.PHONY: molecule
molecule: setup ## every molecule scenario, on two simulated pairs side by side
	molecule/run

.PHONY: test
test: ## lint, unit and molecule, at the same time
	@.ci/test

# The longest first: with it at the end, the other pair would have nothing left to do.
.PHONY: test-faults
test-faults: setup ## the switch under fire, on two simulated pairs; writes the table in docs/faults.md
	molecule/run --pairs 2 switch_faults_servers switch_faults_machines switch_faults_tool
	@$(PYTHON) docs/make_fault_table.py

.PHONY: clean
clean: destroy ## remove the simulated pairs, their image and everything generated but inventory/local
	@if [ -x $(PYTHON) ]; then $(PAIR) destroy --image; fi
	rm -rf .venv .ansible .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
